/* Chrome JSON of a block of events: one event a line, each line ended by ",\n". The GIL is released meanwhile.
 *
 * Format: "Trace Event Format" (the Chrome project), as Perfetto, Catapult, Kineto's readers and HTA take it.
 * The output is JSON for every content of a block and its heap: ids, lengths and texts are checked, and an event
 * whose arguments cannot be read says so.
 *
 * Times are microseconds since `base`. Dialect "kineto" writes them with three decimals. Dialect "tensorboard"
 * writes multiples of 1/2048 us: its reader adds ts and dur as doubles and drops a span that seems to end after
 * its parent, and only such numbers add up exactly. They are within 0.25 ns of the truth, so readers that round
 * to nanoseconds get the same number from both. */
#include "encoders/json.h"
#include "encoders/output.h"
#include <locale.h>

typedef struct {
    Output out;
    const char *heap;
    size_t heap_len;
    int64_t base;
    bool tensorboard, args; /* args: the event's argument object was begun */
    uint32_t seen;          /* bits of KEYS that the event's arguments have */
    struct {
        uint32_t track, len;
        char text[72];
    } tracks[64];
} Out;

enum { ROLE_HOST = 1, ROLE_RUNTIME, ROLE_DEVICE };
static const struct {
    const char *name, *tensorboard;
    uint8_t role;
} CATEGORIES[] = {
    {"user_annotation", "cpu_op", ROLE_HOST},
    {"cpu_op", NULL, ROLE_HOST},
    {"operator", NULL, ROLE_HOST},
    {"cuda_runtime", "runtime", ROLE_RUNTIME},
    {"cuda_driver", "runtime", ROLE_RUNTIME},
    {"runtime", NULL, ROLE_RUNTIME},
    {"kernel", NULL, ROLE_DEVICE},
    {"gpu_memcpy", NULL, ROLE_DEVICE},
    {"gpu_memset", NULL, ROLE_DEVICE},
    {"memcpy", NULL, ROLE_DEVICE},
    {"memset", NULL, ROLE_DEVICE},
    {"fwdbwd", "forward_backward", 0},
};
static uint8_t roles[FIRST_NAME];
static uint16_t renamed[FIRST_NAME]; /* category in the dialect "tensorboard", 0 = the same */

enum {
    EXTERNAL_ID = 1,
    CORRELATION = 2,
    DEVICE = 4,
    STREAM = 8,
    ADDR = 16,
    BYTES = 32,
    DEVICE_TYPE = 64,
    DEVICE_ID = 128,
    TOTAL_ALLOCATED = 256,
    TOTAL_RESERVED = 512
};
static const char *const KEYS[] = {"External id", "correlation", "device",    "stream",          "Addr",
                                   "Bytes",       "Device Type", "Device Id", "Total Allocated", "Total Reserved"};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };
static uint32_t key_ids[N_KEYS];
static char digits3[3000], fractions[2048 * 11];
static uint16_t grid_of[1000]; /* nanoseconds in 1/2048 us, rounded */
static locale_t plain;         /* a comma as decimal point is not JSON */

static void prepare(void) {
    char text[16];
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(text, sizeof text, "%03u", i);
        memcpy(digits3 + i * 3, text, 3);
        grid_of[i] = (uint16_t)((i * 2048 + 500) / 1000);
    }
    for (uint64_t i = 0; i < 2048; i++) {
        snprintf(text, sizeof text, "%011llu", (unsigned long long)(i * 48828125));
        memcpy(fractions + i * 11, text, 11);
    }
    for (size_t i = 0; i < sizeof CATEGORIES / sizeof *CATEGORIES; i++) {
        uint16_t id = strings_category(CATEGORIES[i].name, strlen(CATEGORIES[i].name));
        const char *other = CATEGORIES[i].tensorboard;
        if (!id) continue; /* the table is full: no event has this category */
        roles[id] = CATEGORIES[i].role;
        renamed[id] = other ? strings_category(other, strlen(other)) : 0;
    }
    for (int i = 0; i < N_KEYS; i++) key_ids[i] = strings_intern(KEYS[i], strlen(KEYS[i]));
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static inline bool reserve(Out *o, size_t need) { return output_reserve(&o->out, need); }

/* put_…: the room was reserved before. */
static inline void put(Out *o, const char *text, size_t len) { output_put(&o->out, text, len); }
#define PUT(o, literal) put(o, literal, sizeof(literal) - 1)

static inline void put_uint(Out *o, uint64_t n) { o->out.at = write_uint(o->out.at, n); }
static inline void put_hex(Out *o, uint64_t n) {
    for (int shift = n ? (63 - __builtin_clzll(n)) & ~3 : 0; shift >= 0; shift -= 4)
        *o->out.at++ = "0123456789abcdef"[n >> shift & 15];
}

/* Time in 1/2048 us, away from zero for both signs, so that equal times are equal numbers everywhere. */
static inline int64_t grid(int64_t ns) {
    uint64_t n = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    int64_t g = (int64_t)(n / 1000 * 2048 + grid_of[n % 1000]);
    return ns < 0 ? -g : g;
}
static inline void put_grid(Out *o, int64_t g) {
    uint64_t n = g < 0 ? 0 - (uint64_t)g : (uint64_t)g;
    if (g < 0) *o->out.at++ = '-';
    put_uint(o, n >> 11);
    *o->out.at++ = '.';
    put(o, fractions + (n & 2047) * 11, 11);
}
static inline void put_us(Out *o, int64_t ns) {
    uint64_t n = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns;
    if (ns < 0) *o->out.at++ = '-';
    put_uint(o, n / 1000);
    *o->out.at++ = '.';
    put(o, digits3 + n % 1000 * 3, 3);
}
static inline int64_t since_base(const Out *o, int64_t ts) { return (int64_t)((uint64_t)ts - (uint64_t)o->base); }
static inline void put_ts(Out *o, int64_t ns) {
    if (o->tensorboard) put_grid(o, grid(ns));
    else put_us(o, ns);
}

static inline bool put_key(Out *o, const char *key, size_t len, size_t room) {
    if (!reserve(o, len + room + 64)) return false;
    if (o->args) PUT(o, ",\"");
    else PUT(o, ",\"args\":{\"");
    o->args = true;
    put(o, key, len);
    PUT(o, "\":");
    return true;
}
#define PUT_KEY(o, literal) put_key(o, literal, sizeof(literal) - 1, 0)
static void arg_uint(Out *o, uint32_t bit, uint64_t value) {
    const char *key = KEYS[__builtin_ctz(bit)];
    if (!(o->seen & bit) && put_key(o, key, strlen(key), 0)) put_uint(o, value);
}
static void arg_int(Out *o, uint32_t bit, int64_t value) {
    const char *key = KEYS[__builtin_ctz(bit)];
    if (!(o->seen & bit) && put_key(o, key, strlen(key), 0)) o->out.at = write_int(o->out.at, value);
}

static bool put_value(Out *o, uint8_t type, const char *value, size_t len) {
    int64_t i = 0;
    double d = 0;
    if (len == 8) memcpy(&i, value, 8), memcpy(&d, value, 8);
    switch (type) {
    case 'i': o->out.at = write_int(o->out.at, i); return len == 8;
    case 'u': put_uint(o, (uint64_t)i); return len == 8;
    case 'd': o->out.at = write_double(o->out.at, d); return len == 8;
    case 'b': len == 1 && *value ? PUT(o, "true") : PUT(o, "false"); return len == 1;
    case 'n': PUT(o, "null"); return len == 0;
    case 's': o->out.at = write_text(o->out.at, value, len); return true;
    case 'j':
        if (!json_valid(value, len)) o->out.at = write_text(o->out.at, value, len);
        else
            for (size_t at = 0; at < len; at++) *o->out.at++ = (unsigned char)value[at] < 0x20 ? ' ' : value[at]; /* one line */
        return true;
    default: PUT(o, "null"); return false;
    }
}

static void see(Out *o, uint32_t key) {
    for (int i = 0; i < N_KEYS; i++)
        if (key == key_ids[i]) o->seen |= 1u << i;
}

static void put_arguments(Out *o, const Event *e) {
    if (!e->args_len && !(e->flags & FLAG_ARG_INLINE)) return;
    if (e->flags & FLAG_ARG_INLINE) {
        const String *key = strings_get(e->args_at);
        see(o, e->args_at);
        if (put_key(o, key->json, key->json_len, 0)) put_uint(o, e->args_len);
        return;
    }
    Arguments all = arguments_of(e, o->heap, o->heap_len);
    ArgItem item;
    const char *value;
    while (argument_next(&all, &item, &value)) {
        const String *key = strings_get(item.key);
        see(o, item.key);
        if (!put_key(o, key->json, key->json_len, item.len * 6u)) break;
        all.good = put_value(o, item.type, value, item.len);
    }
    if (!all.good && PUT_KEY(o, "bad arguments")) PUT(o, "true");
}

/* `{"ph":"X","cat":"…","name":"…","pid":…,"tid":…,"ts":…`, and room for 160 bytes more. */
static bool put_head(Out *o, char phase, uint16_t category, const char *name, size_t name_len, const Event *e, int64_t ts) {
    const String *cat = strings_get(category);
    if (!reserve(o, cat->json_len + name_len + 320)) return false;
    PUT(o, "{\"ph\":\"");
    *o->out.at++ = phase;
    PUT(o, "\",\"cat\":\"");
    output_put_short(&o->out, cat->json, cat->json_len);
    PUT(o, "\",\"name\":\"");
    output_put_short(&o->out, name, name_len);
    uint32_t slot = e->track & 63;
    if (o->tracks[slot].track != e->track || !o->tracks[slot].len) {
        const Track *track = track_get(e->track);
        char *p = o->tracks[slot].text;
        memcpy(p, "\",\"pid\":", 8);
        p = write_int(p + 8, track->pid);
        memcpy(p, ",\"tid\":", 7);
        p = write_int(p + 7, track->tid);
        memcpy(p, ",\"ts\":", 6);
        o->tracks[slot].track = e->track;
        o->tracks[slot].len = (uint32_t)(p + 6 - o->tracks[slot].text);
    }
    output_put_short(&o->out, o->tracks[slot].text, o->tracks[slot].len);
    put_ts(o, ts);
    o->args = false;
    o->seen = 0;
    return true;
}

static void put_end(Out *o) {
    if (!reserve(o, 8)) return;
    if (o->args) PUT(o, "}},\n");
    else PUT(o, "},\n");
}

static inline void put_local_id(Out *o, uint64_t id) {
    PUT(o, ",\"id2\":{\"local\":\"0x");
    put_hex(o, id);
    PUT(o, "\"}");
}

/* Arguments that readers of device activity need, unless the event's own arguments have it. */
static void put_links(Out *o, const Event *e, uint8_t role) {
    if (role == ROLE_DEVICE) {
        const Track *track = track_get(e->track);
        arg_int(o, DEVICE, track->pid);
        arg_int(o, STREAM, track->tid);
    }
    if (!o->tensorboard) return;
    if (role == ROLE_HOST) {
        if (e->id) arg_uint(o, EXTERNAL_ID, e->id);
    } else {
        arg_uint(o, EXTERNAL_ID, e->parent); /* 0: none, which is another thing than leaving it out */
        arg_uint(o, CORRELATION, role == ROLE_RUNTIME ? e->id : 0);
    }
}

static void put_span(Out *o, const Event *e) {
    const String *name = strings_get(e->name);
    int64_t ts = since_base(o, e->ts), dur = e->dur > 0 ? e->dur : 0, end;
    if (__builtin_add_overflow(ts, dur, &end)) end = ts, dur = 0;
    uint8_t role = e->category < FIRST_NAME ? roles[e->category] : 0;
    uint16_t category = e->category;
    const char *text = name->json;
    size_t len = name->json_len;
    char numbered[MAX_NAME * 6 + 16];
    if (e->flags & FLAG_NUMBERED) {
        memcpy(numbered, text, len);
        len += (size_t)snprintf(numbered + len, 16, "#%d", e->step);
        text = numbered;
    } else if (o->tensorboard && category < FIRST_NAME && renamed[category] &&
               !(role == ROLE_HOST && name->len > 13 && !memcmp(name->text, "ProfilerStep#", 13)))
        category = renamed[category];
    bool async = e->flags & FLAG_ASYNC;
    if (!put_head(o, async ? 'b' : 'X', category, text, len, e, ts)) return;
    if (async) put_local_id(o, e->id);
    else {
        PUT(o, ",\"dur\":");
        if (o->tensorboard) put_grid(o, (int64_t)((uint64_t)grid(end) - (uint64_t)grid(ts)));
        else put_us(o, dur);
    }
    if (e->flags & FLAG_OPEN && PUT_KEY(o, "had not ended")) PUT(o, "true");
    if (e->flags & FLAG_CLIPPED && PUT_KEY(o, "was cut")) PUT(o, "true");
    if (e->flags & FLAG_ERROR && PUT_KEY(o, "left by exception")) PUT(o, "true");
    put_arguments(o, e);
    if (role && !async) put_links(o, e, role);
    put_end(o);
    if (!async || !put_head(o, 'e', category, text, len, e, end)) return;
    put_local_id(o, e->id);
    put_end(o);
}

static void put_point(Out *o, const Event *e, char scope, const char *name, size_t name_len) {
    if (!put_head(o, 'i', e->category, name, name_len, e, since_base(o, e->ts))) return;
    PUT(o, ",\"s\":\"");
    *o->out.at++ = scope;
    *o->out.at++ = '"';
    put_arguments(o, e);
    if (e->kind == KIND_MEMORY) {
        bool total = e->value >= 0 && e->value < 9e18;
        arg_uint(o, ADDR, e->id);
        arg_int(o, BYTES, 0);
        arg_int(o, DEVICE_TYPE, 0);
        arg_int(o, DEVICE_ID, -1);
        arg_int(o, TOTAL_ALLOCATED, total ? (int64_t)e->value : 0);
        arg_int(o, TOTAL_RESERVED, 0);
    } else if (e->kind > KIND_GAP && PUT_KEY(o, "unknown kind")) put_uint(o, e->kind);
    put_end(o);
}

static void put_counter(Out *o, const Event *e) {
    const String *name = strings_get(e->name);
    if (e->value - e->value != 0) { /* a sample that is no number would spoil the counter's row: an instant has it */
        char text[MAX_NAME * 6 + 16];
        const char *value = not_finite_text(e);
        memcpy(text, name->json, name->json_len);
        memcpy(text + name->json_len, value, strlen(value));
        put_point(o, e, 't', text, name->json_len + strlen(value));
        return;
    }
    const String *cat = strings_get(e->category);
    if (!reserve(o, cat->json_len + name->json_len + 256)) return;
    PUT(o, "{\"ph\":\"C\",\"cat\":\"");
    put(o, cat->json, cat->json_len);
    PUT(o, "\",\"name\":\"");
    put(o, name->json, name->json_len);
    PUT(o, "\",\"pid\":");
    o->out.at = write_int(o->out.at, track_get(e->track)->pid);
    PUT(o, ",\"ts\":");
    put_ts(o, since_base(o, e->ts));
    PUT(o, ",\"args\":{\"value\":");
    o->out.at = write_double(o->out.at, e->value);
    PUT(o, "}},\n");
}

static void put_flow(Out *o, const Event *e) {
    const String *name = strings_get(e->name);
    uint16_t category = e->category;
    if (o->tensorboard && category < FIRST_NAME && renamed[category] && !roles[category]) category = renamed[category];
    char phase = e->kind == KIND_FLOW_START ? 's' : e->kind == KIND_FLOW_STEP ? 't' : 'f';
    if (!put_head(o, phase, category, name->json, name->json_len, e, since_base(o, e->ts))) return;
    PUT(o, ",\"id\":");
    put_uint(o, e->id);
    if (phase != 's') PUT(o, ",\"bp\":\"e\"");
    put_arguments(o, e);
    put_end(o);
}

static void put_async(Out *o, const Event *e) {
    const String *name = strings_get(e->name);
    if (!put_head(o, e->kind == KIND_ASYNC_BEGIN ? 'b' : 'e', e->category, name->json, name->json_len, e, since_base(o, e->ts)))
        return;
    put_local_id(o, e->id);
    put_arguments(o, e);
    put_end(o);
}

/* A pair of its own: a slice would overlap those that were cut short by the gap. */
static void put_gap(Out *o, const Event *e) {
    const String *name = strings_get(e->name);
    int64_t ts = since_base(o, e->ts), end;
    if (__builtin_add_overflow(ts, e->dur > 0 ? e->dur : 0, &end)) end = ts;
    uint64_t id = (uint64_t)e->ts << 12 ^ e->track;
    if (!put_head(o, 'b', e->category, name->json, name->json_len, e, ts)) return;
    put_local_id(o, id);
    if (e->id && PUT_KEY(o, "count")) put_uint(o, e->id);
    put_arguments(o, e);
    put_end(o);
    if (!put_head(o, 'e', e->category, name->json, name->json_len, e, end)) return;
    put_local_id(o, id);
    put_end(o);
}

static void put_event(Out *o, const Event *e) {
    const String *name;
    switch (e->kind) {
    case KIND_SPAN: put_span(o, e); return;
    case KIND_COUNTER: put_counter(o, e); return;
    case KIND_MEMORY: put_point(o, e, 't', "[memory]", 8); return;
    case KIND_ASYNC_BEGIN:
    case KIND_ASYNC_END: put_async(o, e); return;
    case KIND_GAP: put_gap(o, e); return;
    case KIND_STEP: return; /* the windows stage makes a span of every step */
    default: name = strings_get(e->name); put_point(o, e, e->kind == KIND_METADATA ? 'p' : 't', name->json, name->json_len);
    }
}

static void put_block(Out *o, const char *events, size_t n) {
    bool flows = false;
    Event e;
    for (size_t i = 0; i < n && !o->out.failed; i++) {
        memcpy(&e, events + i * sizeof e, sizeof e); /* the buffer may be unaligned */
        if (e.kind >= KIND_FLOW_START && e.kind <= KIND_FLOW_END) flows = true;
        else put_event(o, &e);
    }
    /* Flows bind to the slice that is open at their time; readers take events of one time in the order of the file. */
    for (size_t i = 0; flows && i < n && !o->out.failed; i++) {
        memcpy(&e, events + i * sizeof e, sizeof e);
        if (e.kind >= KIND_FLOW_START && e.kind <= KIND_FLOW_END) put_flow(o, &e);
    }
}

PyObject *chrome_py_encode(PyObject *self, PyObject *args) {
    Py_buffer events, heap;
    long long base;
    const char *dialect;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*Ls:encode_chrome", &events, &heap, &base, &dialect)) return NULL;
    Out *o = PyMem_Calloc(1, sizeof *o);
    size_t n = (size_t)events.len / sizeof(Event), room = n * 144 + ((size_t)heap.len < n * 64 ? (size_t)heap.len : n * 64);
    bool tensorboard = !strcmp(dialect, "tensorboard");
    if (!o) PyErr_NoMemory();
    else if ((size_t)events.len % sizeof(Event))
        PyErr_Format(PyExc_ValueError, "a block of %zd bytes is not made of 64-byte events", events.len);
    else if (!tensorboard && strcmp(dialect, "kineto"))
        PyErr_Format(PyExc_ValueError, "dialect must be 'kineto' or 'tensorboard', got '%s'", dialect);
    else {
        if (!plain) prepare();
        *o = (Out){.heap = heap.buf, .heap_len = (size_t)heap.len, .base = base, .tensorboard = tensorboard};
        if (output_open(&o->out, room)) {
            locale_t former = uselocale(plain);
            put_block(o, events.buf, n);
            uselocale(former);
            result = output_close(&o->out);
        }
    }
    PyMem_Free(o);
    PyBuffer_Release(&events);
    PyBuffer_Release(&heap);
    return result;
}
