/* Events as columns of differences, in planes of bytes. docs/segment-format.md describes them.
 *
 * A frame, the unit of encoding, stands alone: its table has the names and tracks that its events use, and events have their places in that table.
 * Encoding needs no GIL and takes no lock; one thread at a time encodes. */
#include "buffer.h"
#include "encoders/crc32.h"
#include "encoders/output.h"
#include "encoders/zstd.h"
#include <stdlib.h>

#define WIDEST 8 /* bytes of a value in a column */

typedef struct {
    size_t columns, heap, table; /* bytes of each, in this order */
    uint64_t cut;                /* events without their arguments, which are none */
} FrameParts;

typedef struct {
    const uint32_t *ids; /* of this process, by their place in the frame's table */
    size_t count;
} FrameIds;

static inline uint64_t zigzag(uint64_t difference) { return difference << 1 ^ (uint64_t)((int64_t)difference >> 63); }
static inline uint64_t unzigzag(uint64_t value) { return value >> 1 ^ (0 - (value & 1)); }
static inline bool is_inline(const Event *e) { return e->flags & FLAG_ARG_INLINE; }
static inline uint32_t heap_len(const Event *e) { return is_inline(e) ? 0 : e->args_len; }

/* Places in a frame's table, by the ids of this process. */
typedef struct {
    uint32_t *place; /* 1 + the place of an id, 0 = none; as long as the process's table can be */
    uint32_t *ids;   /* in the order of their places */
    uint32_t count, room;
    bool failed; /* no memory */
} Places;

static bool places_ready(Places *p, size_t most) {
    if (!p->place) p->place = calloc(most, sizeof *p->place); /* pages that are not touched take no memory */
    return p->place != NULL;
}

static inline uint32_t place_of(Places *p, uint32_t id) {
    if (p->place[id]) return p->place[id] - 1;
    if (p->count == p->room) {
        uint32_t room = p->room * 2 + 256, *ids = realloc(p->ids, room * sizeof *ids);
        if (!ids) return p->failed = true, 0;
        p->ids = ids, p->room = room;
    }
    p->ids[p->count] = id;
    return p->place[id] = ++p->count, p->count - 1;
}

static void places_clear(Places *p) {
    for (uint32_t i = 0; i < p->count; i++) p->place[p->ids[i]] = 0;
    p->count = 0;
    p->failed = false;
}

static Places texts, tracks;
static uint64_t *scratch; /* one column */
static size_t scratch_room;
static Buffer frame;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the above; taken without the GIL */

void columns_fork(int phase) { fork_lock(&lock, phase); }

static inline uint32_t text_place(uint32_t id) { return place_of(&texts, id < MAX_STRINGS ? id : 0); }
static inline uint32_t track_place(uint32_t id) { return place_of(&tracks, id <= MAX_TRACKS ? id : 0); }

/* msgpack, as far as tables need it. */
static void put_number(Buffer *b, int64_t value) {
    uint8_t bytes[9] = {0xd3};
    if (value >= 0 && value < 128) {
        buffer_put(b, (uint8_t[]){(uint8_t)value}, 1);
        return;
    }
    for (int i = 0; i < 8; i++) bytes[1 + i] = (uint8_t)((uint64_t)value >> (56 - 8 * i));
    buffer_put(b, bytes, 9);
}

static void put_head(Buffer *b, uint8_t type, size_t len) {
    uint8_t bytes[5] = {type, (uint8_t)(len >> 24), (uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len};
    buffer_put(b, bytes, 5);
}
static void put_array(Buffer *b, size_t len) {
    if (len < 16) buffer_put(b, (uint8_t[]){(uint8_t)(0x90 | len)}, 1);
    else put_head(b, 0xdd, len);
}
static void put_text(Buffer *b, const char *text, size_t len) {
    if (len < 32) buffer_put(b, (uint8_t[]){(uint8_t)(0xa0 | len)}, 1);
    else put_head(b, 0xdb, len);
    buffer_put(b, text, len);
}

/* [names, tracks]: a track is [id, kind, pid, tid, id of its parent or 0, place of its name]. */
static void put_table(void) {
    Buffer *b = &frame;
    for (uint32_t i = 0; i < tracks.count; i++) { /* it grows meanwhile: parents come after those that they have */
        const Track *t = track_get(tracks.ids[i]);
        text_place(t->name);
        if (t->parent) track_place(t->parent);
    }
    put_array(b, 2);
    put_array(b, texts.count);
    for (uint32_t i = 0; i < texts.count; i++) {
        const String *s = strings_get(texts.ids[i]);
        put_text(b, s->text, s->len);
    }
    put_array(b, tracks.count);
    for (uint32_t i = 0; i < tracks.count; i++) {
        const Track *t = track_get(tracks.ids[i]);
        put_array(b, 6);
        put_number(b, tracks.ids[i]);
        put_number(b, t->kind);
        put_number(b, t->pid);
        put_number(b, t->tid);
        put_number(b, t->parent);
        put_number(b, text_place(t->name));
    }
}

#define LONGEST_ARGUMENTS (4 << 20) /* an event with more loses them: they would fill a frame */

static inline bool has_valid_arguments(const Event *e, const char *args, size_t args_len) {
    return is_inline(e) || (e->args_len <= LONGEST_ARGUMENTS && arguments_of(e, args, args_len).good);
}

/* The arguments of an event behind those of the events before it, their keys as places; false if they are none. */
static bool put_arguments(const Event *e, const char *args, size_t args_len) {
    uint32_t len = heap_len(e);
    Arguments from = arguments_of(e, args, args_len);
    if (!len || !from.good || len > LONGEST_ARGUMENTS) return !len;
    uint8_t *copy = buffer_add(&frame, len);
    if (!copy) return true;
    memcpy(copy, from.at, len);
    ArgItem item;
    const char *value, *begin = from.at;
    while (argument_next(&from, &item, &value)) {
        uint32_t place = text_place(item.key);
        memcpy(copy + (value - sizeof item - begin), &place, sizeof place);
    }
    return true;
}

static bool scratch_ready(size_t count) {
    if (count <= scratch_room) return true;
    uint64_t *room = realloc(scratch, count * sizeof *scratch);
    if (room) scratch = room, scratch_room = count;
    return room != NULL;
}

static void put_column(size_t count) {
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++) all |= scratch[i];
    uint8_t width = 0;
    while (width < WIDEST && all >> (8 * width)) width++;
    buffer_put(&frame, &width, 1);
    for (uint8_t plane = 0; plane < width; plane++) {
        uint8_t *to = buffer_add(&frame, count);
        for (size_t i = 0; to && i < count; i++) to[i] = (uint8_t)(scratch[i] >> (8 * plane));
    }
}

#define COLUMN(expression)                                                                                                   \
    do {                                                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                                 \
            const Event *e = &events[i];                                                                                     \
            (void)e;                                                                                                         \
            scratch[i] = (uint64_t)(expression);                                                                             \
        }                                                                                                                    \
        put_column(count);                                                                                             \
    } while (0)
#define DIFFERENCES(expression)                                                                                              \
    do {                                                                                                                     \
        uint64_t before = 0;                                                                                                 \
        for (size_t i = 0; i < count; i++) {                                                                                 \
            const Event *e = &events[i];                                                                                     \
            uint64_t value = (uint64_t)(expression);                                                                         \
            scratch[i] = zigzag(value - before);                                                                             \
            before = value;                                                                                                  \
        }                                                                                                                    \
        put_column(count);                                                                                             \
    } while (0)

static inline bool is_span(const Event *e) { return e->kind == KIND_SPAN; }
static inline uint64_t own_time(const Event *e) { return (uint64_t)(is_span(e) ? e->self : e->dur); }

/* Columns, arguments, table: how long each is. `cut` counts events whose arguments are left out because they are none. */
static bool put_frame(const Event *events, size_t count, const char *args, size_t args_len, FrameParts *parts) {
    frame.len = 0;
    frame.failed = false;
    if (!places_ready(&texts, MAX_STRINGS) || !places_ready(&tracks, MAX_TRACKS + 1)) return false;
    if (!scratch_ready(count)) return false;
    COLUMN(e->kind);
    COLUMN(e->flags);
    COLUMN(text_place(e->category));
    COLUMN(text_place(e->name));
    COLUMN(track_place(e->track));
    DIFFERENCES((int64_t)e->step);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t ends = (uint64_t)events[i].ts + (uint64_t)events[i].dur;
        scratch[i] = zigzag(ends - end - own_time(&events[i]));
        end = ends;
    }
    put_column(count);
    COLUMN(zigzag(own_time(e)));
    COLUMN(zigzag(is_span(e) ? (uint64_t)e->dur - (uint64_t)e->self : 0));
    DIFFERENCES(e->id);
    DIFFERENCES(e->parent);
    COLUMN(is_span(e) ? 0 : (uint64_t)e->self);
    COLUMN(is_inline(e) ? text_place(e->args_at) + 1 : 0);
    COLUMN(has_valid_arguments(e, args, args_len) ? e->args_len : 0);
    *parts = (FrameParts){.columns = frame.len};
    for (size_t i = 0; i < count; i++) parts->cut += !put_arguments(&events[i], args, args_len);
    parts->heap = frame.len - parts->columns;
    put_table();
    parts->table = frame.len - parts->columns - parts->heap;
    bool whole = !frame.failed && !texts.failed && !tracks.failed;
    places_clear(&texts);
    places_clear(&tracks);
    return whole;
}

/* The bytes that a frame is decoded from: nothing outside of them is read. */
typedef struct {
    const uint8_t *at, *end;
    bool good;
} Input;

static const uint8_t *input_read(Input *in, size_t len) {
    if ((size_t)(in->end - in->at) < len) in->good = false;
    if (!in->good) return NULL;
    in->at += len;
    return in->at - len;
}

enum {
    COLUMNS = 14,
    CATEGORIES = 2, /* which of them has the categories */
    PART = 128 /* events whose columns stay in the processor's first cache while rows are made of them */
};

typedef struct {
    const uint8_t *planes;
    uint8_t width;
} Column;

/* Sums of differences, up to a part. */
typedef struct { uint64_t step, end, id, parent; } Sums;

static void part_of(const Column *column, size_t count, size_t first, size_t n, uint64_t *restrict values) {
    const uint8_t *restrict from = column->planes + first;
    if (!column->width) memset(values, 0, n * sizeof *values);
    else
        for (size_t i = 0; i < n; i++) values[i] = from[i];
    for (uint8_t plane = 1; plane < column->width; plane++) {
        from += count;
        for (size_t i = 0; i < n; i++) values[i] |= (uint64_t)from[i] << (8 * plane);
    }
}

static inline uint32_t known(Input *in, const FrameIds *ids, uint64_t place) {
    if (place < ids->count) return ids->ids[place];
    in->good = false;
    return 0;
}

static void decode_part(Input *in, const Column *columns, size_t count, size_t first, size_t n, Event *events, Sums *sums,
                        const FrameIds *names, const FrameIds *rows, const uint16_t *categories) {
    uint64_t values[COLUMNS][PART];
    Sums sum = *sums;
    for (size_t i = 0; i < COLUMNS; i++) part_of(&columns[i], count, first, n, values[i]);
    for (size_t i = 0; i < n; i++) {
        uint64_t own = unzigzag(values[7][i]), lasted = unzigzag(values[8][i]) + own;
        sum.step += unzigzag(values[5][i]);
        sum.end += unzigzag(values[6][i]) + own;
        sum.id += unzigzag(values[9][i]);
        sum.parent += unzigzag(values[10][i]);
        Event e = {.kind = (uint8_t)values[0][i],
                   .flags = (uint8_t)values[1][i],
                   .category = categories[values[CATEGORIES][i]],
                   .name = known(in, names, values[3][i]),
                   .track = known(in, rows, values[4][i]),
                   .step = (int32_t)sum.step,
                   .ts = (int64_t)(sum.end - lasted),
                   .dur = (int64_t)lasted,
                   .id = sum.id,
                   .parent = sum.parent,
                   .self = (int64_t)own,
                   .args_len = (uint32_t)values[13][i]};
        if (!is_span(&e)) e.self = (int64_t)values[11][i];
        if (is_inline(&e)) e.args_at = known(in, names, values[12][i] - 1);
        events[i] = e;
    }
    *sums = sum;
}

static void find_columns(Input *in, size_t count, Column *columns) {
    for (size_t i = 0; i < COLUMNS; i++) {
        const uint8_t *width = input_read(in, 1);
        if (width && *width > WIDEST) in->good = false;
        const uint8_t *planes = in->good ? input_read(in, *width * count) : NULL;
        if (!in->good) return;
        columns[i] = (Column){planes, *width};
    }
}

/* Categories by their places in the table: few texts are one, and only those become categories of this process. NULL: none can be
 * had. */
static uint16_t *decode_categories(Input *in, const Column *column, size_t count, size_t names, PyObject *category_of) {
    uint64_t values[PART];
    size_t most = names <= UINT16_MAX ? names : UINT16_MAX + 1;
    uint16_t *found = calloc(most + 1, sizeof *found);
    if (!found) PyErr_NoMemory();
    for (size_t first = 0; found && first < count; first += PART) {
        size_t n = count - first < PART ? count - first : PART;
        part_of(column, count, first, n, values);
        for (size_t i = 0; i < n; i++) {
            if (values[i] < most) found[values[i]] = 1;
            else in->good = false;
        }
    }
    for (size_t place = 0; found && in->good && place < most; place++) {
        if (!found[place]) continue;
        found[place] = (uint16_t)place;
        if (category_of == Py_None) continue;
        PyObject *id = PyObject_CallFunction(category_of, "n", (Py_ssize_t)place);
        if (id) found[place] = (uint16_t)PyLong_AsUnsignedLong(id);
        Py_XDECREF(id);
        in->good = !PyErr_Occurred();
    }
    return found;
}

static void decode_columns(Input *in, Event *events, size_t count, const Column *columns, const FrameIds *names,
                           const FrameIds *rows, const uint16_t *categories) {
    Sums sums = {0};
    for (size_t first = 0; in->good && first < count; first += PART) {
        size_t n = count - first < PART ? count - first : PART;
        decode_part(in, columns, count, first, n, events + first, &sums, names, rows, categories);
    }
}

/* Gives each event its arguments, in the order of the events, and the keys their ids; how many events lose theirs, which are
 * none. */
static uint64_t decode_arguments(Input *in, Event *events, size_t count, char *args, size_t args_len, const FrameIds *names) {
    uint64_t at = 0, cut = 0;
    for (size_t i = 0; in->good && i < count; i++) {
        Event *e = &events[i];
        if (is_inline(e)) continue;
        e->args_at = (uint32_t)at;
        at += e->args_len;
        Arguments from = arguments_of(e, args, args_len);
        if (at > args_len || !from.good) in->good = false;
        ArgItem item;
        const char *value;
        while (in->good && argument_next(&from, &item, &value)) {
            if (item.key >= names->count) {
                from.good = false;
                break;
            }
            memcpy(args + (value - sizeof item - args), &names->ids[item.key], sizeof item.key);
        }
        if (!from.good) e->args_len = 0, cut++;
    }
    in->good &= at == args_len;
    return cut;
}

/* The frames of a journal, as docs/segment-format.md has them. */
#define MESSAGE_BYTES (512 << 10) /* of an encoded frame: a message broker takes messages of 1 MiB, as a rule */
#define FRAME_BYTES (512 << 10) /* of events and arguments as they are in memory: each column reads all of them, from a cache of the processor */
#define LONGEST_SOURCE 255
enum { FRAME_ZSTD = 2, FRAME_COLUMNS = 8 };
typedef struct {
    char sync[4];
    uint8_t kind, flags;
    uint16_t zero;
    uint32_t number, length, payload_crc, crc;
} FrameHeader;
typedef struct {
    int64_t first, last;
    int32_t window;
    uint32_t count, args_bytes;
    uint16_t source_len, zero;
} EventsHeader;
typedef struct { uint32_t content, arguments, table; /* bytes */ } ColumnsHeader;
_Static_assert(sizeof(FrameHeader) == 24 && sizeof(EventsHeader) == 32 && sizeof(ColumnsHeader) == 12, "as in the files");

static EventsHeader header_of(const Event *events, size_t count) {
    EventsHeader header = {.count = (uint32_t)count};
    if (count) header.first = INT64_MAX, header.last = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        int64_t last = (int64_t)((uint64_t)events[i].ts + (uint64_t)(events[i].dur > 0 ? events[i].dur : 0));
        if (events[i].ts < header.first) header.first = events[i].ts;
        if (last > header.last) header.last = last;
    }
    return header;
}

/* How many of the events, one at least, go into one frame. */
static size_t frame_events(const Event *events, size_t count, const char *args, size_t args_len) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += sizeof(Event) + (has_valid_arguments(&events[i], args, args_len) ? heap_len(&events[i]) : 0);
        if (i && bytes > FRAME_BYTES) return i;
    }
    return count;
}

/* One frame behind those in `to`. */
static bool put_events_frame(Buffer *to, FrameHeader head, EventsHeader about, const char *source, const FrameParts *parts) {
    size_t before = to->len, bound = zstd_bound(frame.len), room = bound > frame.len ? bound : frame.len;
    ColumnsHeader columns = {(uint32_t)frame.len, (uint32_t)parts->heap, (uint32_t)parts->table};
    about.args_bytes = (uint32_t)parts->heap;
    buffer_put(to, &head, sizeof head);
    buffer_put(to, &about, sizeof about);
    buffer_put(to, source, about.source_len);
    buffer_put(to, &columns, sizeof columns);
    size_t content = to->len;
    if (!buffer_add(to, room)) return false;
    size_t size = bound ? zstd_compress(to->bytes + content, room, frame.bytes, frame.len) : 0;
    if (!size) memcpy(to->bytes + content, frame.bytes, size = frame.len);
    else head.flags |= FRAME_ZSTD;
    to->len = content + size;
    head.length = (uint32_t)(to->len - before - sizeof head);
    head.payload_crc = crc32_of(0, to->bytes + before + sizeof head, head.length);
    head.crc = crc32_of(0, &head, offsetof(FrameHeader, crc));
    memcpy(to->bytes + before, &head, sizeof head);
    return !to->failed;
}

PyObject *columns_py_encode_frames(PyObject *self, PyObject *args) {
    Py_buffer events, heap, sync, source;
    unsigned int number, frames = 0;
    unsigned char kind;
    int window;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*bIiy*", &events, &heap, &sync, &kind, &number, &window, &source)) return NULL;
    if (events.len % (Py_ssize_t)sizeof(Event) || heap.len > UINT32_MAX || sync.len != 4 || source.len > LONGEST_SOURCE) {
        PyErr_SetString(PyExc_ValueError,
                        "encode_frames() takes whole events, 4 GiB of arguments and a source of 255 bytes at most");
    } else {
        const Event *at = events.buf;
        size_t remaining = (size_t)events.len / sizeof(Event), args_len = (size_t)heap.len;
        uint64_t cut = 0;
        Buffer made = {0};
        bool whole = true;
        PyThreadState *released = release_gil_for(remaining);
        pthread_mutex_lock(&lock);
        do {
            size_t count = frame_events(at, remaining, heap.buf, args_len), before = made.len;
            FrameParts parts = {0};
            for (;; count /= 2) {
                FrameHeader head = {.kind = kind, .flags = FRAME_COLUMNS, .number = number + frames};
                EventsHeader about = header_of(at, count);
                memcpy(head.sync, sync.buf, sizeof head.sync);
                about.window = window, about.source_len = (uint16_t)source.len;
                whole = put_frame(at, count, heap.buf, args_len, &parts) &&
                        put_events_frame(&made, head, about, source.buf, &parts);
                if (!whole || made.len - before <= MESSAGE_BYTES || count == 1) break;
                made.len = before; /* too large for one message of a stream */
            }
            frames++;
            cut += parts.cut;
            at += count, remaining -= count;
        } while (remaining && whole);
        pthread_mutex_unlock(&lock); /* the GIL is not waited for with the lock: a fork waits for the lock with the GIL */
        reacquire_gil(released);
        if (whole) result = Py_BuildValue("(y#IK)", (char *)made.bytes, (Py_ssize_t)made.len, frames, (unsigned long long)cut);
        else PyErr_NoMemory();
        free(made.bytes);
    }
    PyBuffer_Release(&events);
    PyBuffer_Release(&heap);
    PyBuffer_Release(&sync);
    PyBuffer_Release(&source);
    return result;
}

PyObject *columns_py_decode(PyObject *self, PyObject *args) {
    Py_buffer columns, heap, names, rows;
    Py_ssize_t count;
    PyObject *category_of;
    if (!PyArg_ParseTuple(args, "y*ny*y*y*O", &columns, &count, &heap, &names, &rows, &category_of)) return NULL;
    PyObject *events = NULL, *own_heap = NULL, *result = NULL;
    bool possible = count >= 0 && count <= columns.len; /* of 14 columns at least one is not empty: kinds are not 0 */
    if (possible && (events = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Event))) &&
        (own_heap = PyBytes_FromStringAndSize(heap.buf, heap.len))) {
        FrameIds known_names = {names.buf, (size_t)names.len / 4}, known_rows = {rows.buf, (size_t)rows.len / 4};
        Input in = {columns.buf, (const uint8_t *)columns.buf + columns.len, true};
        Event *to = (Event *)PyByteArray_AS_STRING(events);
        uint64_t cut = 0;
        Column found[COLUMNS];
        find_columns(&in, (size_t)count, found);
        uint16_t *categories =
            in.good ? decode_categories(&in, &found[CATEGORIES], (size_t)count, known_names.count, category_of) : NULL;
        in.good &= categories != NULL;
        Py_BEGIN_ALLOW_THREADS
        decode_columns(&in, to, (size_t)count, found, &known_names, &known_rows, categories);
        cut = decode_arguments(&in, to, (size_t)count, PyBytes_AS_STRING(own_heap), (size_t)heap.len, &known_names);
        Py_END_ALLOW_THREADS
        free(categories);
        if (in.good && in.at == in.end) result = Py_BuildValue("(OOK)", events, own_heap, (unsigned long long)cut);
    }
    if (!result && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "columns are not what their header says");
    Py_XDECREF(events);
    Py_XDECREF(own_heap);
    PyBuffer_Release(&columns);
    PyBuffer_Release(&heap);
    PyBuffer_Release(&names);
    PyBuffer_Release(&rows);
    return result;
}
