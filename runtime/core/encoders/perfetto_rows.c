/* The rows of a Perfetto trace: what each is called, and in which order the begins and ends of its spans stand.
 *
 * Spans come when they end. Readers sort packets by their times and take those of one time in the order of the file, so
 * that order decides how spans nest that begin together, and which of two that touch comes first. In a block it is found by
 * going through the spans from the last end to the first. Across blocks, a span that begins together with an
 * enclosing one that comes later cannot be distinguished from others before that is known. Where that is to be expected,
 * at the borders of what was recorded, its begin is delayed; a span that comes too late to nest is drawn apart. */
#include "encoders/perfetto.h"

/* Fields of TracePacket and TrackDescriptor. */
enum {
    PACKET = TAG(1, LEN),
    SEQUENCE = TAG(10, VARINT),
    DESCRIPTOR = TAG(60, LEN),
    UUID = TAG(1, VARINT),
    NAME = TAG(2, LEN),
    PROCESS = TAG(3, LEN),
    THREAD = TAG(4, LEN),
    PARENT = TAG(5, VARINT),
    COUNTER = TAG(8, LEN),
    UNIT = TAG(3, VARINT),
    UNIT_NAME = TAG(6, LEN),
    UNIT_SIZE_BYTES = 3,
    MERGING = TAG(15, VARINT),
    NO_MERGING = 2
};
#define DESCRIBING 1 /* sequence of descriptors, which need no state */
#define MAX_DELAYED 4096
#define DEEPEST_PARENT 8

uint64_t process_uuid(const Encoder *c, int64_t pid) { return mix(c->base, 'P', (uint64_t)pid); }

typedef struct { size_t packet, descriptor; } Described;

static Described open_descriptor(Encoder *c, uint64_t uuid, uint64_t parent) {
    Output *o = &c->out;
    Described d = {.packet = proto_open(o, PACKET)};
    proto_uint(o, SEQUENCE, DESCRIBING);
    d.descriptor = proto_open(o, DESCRIPTOR);
    proto_uint(o, UUID, uuid);
    if (parent) proto_uint(o, PARENT, parent);
    return d;
}

static void close_descriptor(Encoder *c, Described d) {
    proto_close(&c->out, d.descriptor);
    proto_close(&c->out, d.packet);
}

/* A row that is no thread of the system's, or one more of a thread. */
static void describe_child(Encoder *c, uint64_t uuid, uint64_t parent, const char *name, size_t len) {
    Described d = open_descriptor(c, uuid, parent);
    proto_text(&c->out, NAME, name, len);
    proto_uint(&c->out, MERGING, NO_MERGING);
    close_descriptor(c, d);
}

/* A process or thread of the system's: fields of ProcessDescriptor or ThreadDescriptor. */
static void describe_system(Encoder *c, Described d, uint32_t kind, int64_t pid, const int64_t *tid, const String *name) {
    size_t from = proto_open(&c->out, kind);
    proto_uint(&c->out, TAG(1, VARINT), (uint64_t)(int32_t)pid);
    if (tid) proto_uint(&c->out, TAG(2, VARINT), (uint64_t)(int32_t)*tid);
    proto_text(&c->out, tid ? TAG(5, LEN) : TAG(6, LEN), name->text, name->len);
    proto_close(&c->out, from);
    close_descriptor(c, d);
}

static void describe_process(Encoder *c, int64_t pid, const Track *track) {
    const Track *owner = track->kind == TRACK_PROCESS ? track : track_get(track->parent);
    const String *name = strings_get(owner->kind == TRACK_PROCESS && owner->pid == pid ? owner->name : 0);
    describe_system(c, open_descriptor(c, process_uuid(c, pid), 0), PROCESS, pid, NULL, name);
}

static void describe_thread(Encoder *c, uint64_t uuid, const Track *track) {
    Described d = open_descriptor(c, uuid, process_uuid(c, track->pid));
    describe_system(c, d, THREAD, track->pid, &track->tid, strings_get(track->name));
}

static uint64_t described_process(Encoder *c, int64_t pid, const Track *track) {
    uint64_t uuid = process_uuid(c, pid);
    if (pid != c->pid && first_time(c, uuid)) describe_process(c, pid, track);
    return uuid;
}

static uint64_t described_device(Encoder *c, const Track *stream) {
    const Track *owner = track_get(stream->parent);
    int64_t pid = owner->kind == TRACK_PROCESS ? owner->pid : c->pid;
    uint64_t process = described_process(c, pid, owner), uuid = mix(process, 'D', (uint64_t)stream->pid);
    char name[32];
    if (first_time(c, uuid))
        describe_child(c, uuid, process, name, (size_t)snprintf(name, 32, "device %lld", (long long)stream->pid));
    return uuid;
}

/* Describes a track and those that it hangs on, unless that was done; returns its uuid. */
static uint64_t described(Encoder *c, uint32_t id, int deep) {
    const Track *track = track_get(id);
    if (!track->kind || deep == DEEPEST_PARENT) return process_uuid(c, c->pid);
    if (track->kind == TRACK_PROCESS) return described_process(c, track->pid, track);
    uint64_t uuid = mix(c->base, 'T', id);
    if (!first_time(c, uuid)) return uuid;
    const String *name = strings_get(track->name);
    if (track->kind == TRACK_STREAM) {
        describe_child(c, uuid, described_device(c, track), name->text, name->len);
        return uuid;
    }
    uint64_t parent = described_process(c, track->pid, track);
    bool thread = track->kind == TRACK_THREAD && track->tid == (int32_t)track->tid && track->tid > 0;
    if (!thread && track->parent) parent = described(c, track->parent, deep + 1);
    /* Readers take two rows of one number for the same, and what is on them would not nest. */
    if (thread && first_time(c, mix(parent, 'S', (uint64_t)track->tid))) describe_thread(c, uuid, track);
    else describe_child(c, uuid, parent, name->text, name->len);
    return uuid;
}

void describe_row(Encoder *c, Row *row) { row->uuid = described(c, row->track, 0); }

uint64_t described_counter(Encoder *c, const Row *row, uint32_t name) {
    const Track *track = track_get(row->track);
    uint64_t parent = track->kind == TRACK_STREAM ? row->uuid : process_uuid(c, track->kind ? track->pid : c->pid);
    uint64_t uuid = mix(parent, 'C', name);
    if (!first_time(c, uuid)) return uuid;
    const String *text = strings_get(name);
    Described d = open_descriptor(c, uuid, parent);
    proto_text(&c->out, NAME, text->text, text->len);
    size_t counter = proto_open(&c->out, COUNTER);
    if (text->len && text->text[text->len - 1] == '%') proto_text(&c->out, UNIT_NAME, "%", 1);
    else if (strstr(text->text, "bytes")) proto_uint(&c->out, UNIT, UNIT_SIZE_BYTES);
    proto_close(&c->out, counter);
    close_descriptor(c, d);
    return uuid;
}

Row *new_row(Encoder *c, uint32_t track) {
    if (!track_get(track)->kind) track = 0;
    if (!make_room((void **)&c->row_of, &c->row_of_room, (size_t)track + 1, sizeof *c->row_of) ||
        !make_room((void **)&c->rows, &c->rows_room, (size_t)c->rows_used + 1, sizeof *c->rows))
        return c->out.failed = true, NULL;
    if (!c->row_of[track]) {
        c->rows[c->rows_used].track = track;
        c->row_of[track] = ++c->rows_used;
    }
    return &c->rows[c->row_of[track] - 1];
}

static bool delay(Encoder *c, uint32_t row, const Event *e) {
    if (!make_room((void **)&c->delayed, &c->delayed_room, (size_t)c->delayed_count + 1, sizeof *c->delayed)) return false;
    DelayedBegin delayed = {.event = *e, .row = row};
    uint64_t end = (uint64_t)e->args_at + e->args_len;
    if (e->args_len && !(e->flags & FLAG_ARG_INLINE) && end <= c->heap_len && (delayed.args = malloc(e->args_len)))
        memcpy(delayed.args, c->heap + e->args_at, e->args_len);
    c->delayed[c->delayed_count++] = delayed;
    return true;
}

static int outer_first(const void *one, const void *other) {
    const DelayedBegin *a = one, *b = other;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    if (a->event.ts != b->event.ts) return a->event.ts < b->event.ts ? -1 : 1;
    if (a->event.dur != b->event.dur) return a->event.dur > b->event.dur ? -1 : 1;
    return a->order < b->order ? 1 : -1;
}

static void will_change(const Encoder *c, Row *row) {
    if (row->call != c->call) row->call = c->call, row->former = row->roots;
}

void put_delayed(Encoder *c, int64_t row) {
    const char *heap = c->heap;
    size_t heap_len = c->heap_len;
    DelayedBegin *some = calloc(c->delayed_count + 1, sizeof *some);
    uint32_t n = 0;
    for (uint32_t i = 0; some && i < c->delayed_count; i++) {
        DelayedBegin *delayed = &c->delayed[i];
        if (delayed->written || (row >= 0 && delayed->row != row)) continue;
        delayed->written = true;
        some[n] = *delayed, some[n++].order = i;
    }
    if (!some) c->out.failed = true;
    else qsort(some, n, sizeof *some, outer_first);
    for (uint32_t i = 0; i < n && !c->out.failed; i++) {
        Event *e = &some[i].event;
        if (some[i].args) c->heap = some[i].args, c->heap_len = e->args_len, e->args_at = 0;
        else c->heap = NULL, c->heap_len = 0;
        put_begin(c, &c->rows[some[i].row], e);
    }
    c->heap = heap, c->heap_len = heap_len;
    for (uint32_t i = 0; some && i < n; i++) {
        Row *changed = &c->rows[some[i].row];
        will_change(c, changed);
        for (uint32_t k = 0; k < ROOTS; k++) changed->roots.at[k].delayed = false;
    }
    free(some);
}

/* How a span lies to those of its row that were written before, of which the latest are remembered. */
enum { FITS, DELAYED_TOO, OVERLAPS };
static int lies(Roots *roots, const Node *x, bool *releases) {
    int result = FITS;
    for (uint32_t i = roots->used; i-- > 0;) {
        Root *r = &roots->at[i];
        if (r->end <= x->begin && (r->begin < x->begin || r->end < x->begin)) break; /* it comes after */
        if (x->begin < r->begin && r->end <= x->end) *releases |= r->delayed;           /* it contains */
        else if (x->end < r->begin) continue;                                        /* it comes before */
        else if (x->begin == r->begin && r->delayed) result = DELAYED_TOO, *releases |= r->end <= x->end;
        else if (x->begin < r->begin || x->end > r->end) return OVERLAPS;
        else if (x->begin == r->begin && r->crowded && x->end > x->begin)
            return OVERLAPS; /* what ends before it began with it */
        else {
            r->crowded |= x->begin == r->begin && x->begin < x->end && x->end < r->end; /* it lies within */
            break;
        }
    }
    return result;
}

/* Takes the place of those that it contains. They stay in the order of their times, in whichever they came. */
static void remember(Roots *roots, const Node *x) {
    Root *at = roots->at;
    uint32_t n = 0;
    bool crowded = x->crowded;
    for (uint32_t i = 0; i < roots->used; i++) {
        Root r = at[i];
        if (r.begin >= x->begin && r.end <= x->end && !r.delayed) crowded |= r.crowded && r.begin == x->begin;
        else at[n++] = r;
    }
    if (n == ROOTS) memmove(at, at + 1, sizeof(Root) * --n);
    uint32_t place = n;
    while (place && (at[place - 1].begin > x->begin || (at[place - 1].begin == x->begin && at[place - 1].end > x->end)))
        place--;
    memmove(at + place + 1, at + place, sizeof(Root) * (n - place));
    at[place] = (Root){x->begin, x->end, x->delay, crowded};
    roots->used = n + 1;
}

/* Ends first, then what is within; of a block that is in order of begins, what comes later is within. */
static int ends_first(const void *one, const void *other) {
    const Node *a = one, *b = other;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    if (a->begin != b->begin) return a->begin > b->begin ? -1 : 1;
    return a->event > b->event ? -1 : 1;
}

static uint32_t make_nodes(Encoder *c, const Row *row) {
    Event e;
    bool sorted = true;
    for (uint32_t i = 0; i < row->count; i++) {
        Node *x = &c->nodes[i];
        event_at(c, c->order[row->at + i], &e);
        bool span = e.kind == KIND_SPAN;
        int64_t end = e.ts;
        if (span && e.dur > 0 && __builtin_add_overflow(e.ts, e.dur, &end)) end = e.ts;
        bool first = span && e.flags & FLAG_NUMBERED && !c->numbered;
        if (span && e.flags & FLAG_NUMBERED) c->numbered = true;
        /* At these borders spans begin together that came one after the other. */
        bool delayed = span && e.parent && (e.flags & FLAG_CLIPPED || first) && c->delayed_count < MAX_DELAYED;
        *x = (Node){.begin = e.ts,
                    .end = end,
                    .id = e.id,
                    .parent = e.parent,
                    .event = c->order[row->at + i],
                    .point = !span,
                    .delay = delayed};
        if (i && (end < x[-1].end || (end == x[-1].end && e.ts > x[-1].begin && e.ts < end))) sorted = false;
    }
    if (!sorted) qsort(c->nodes, row->count, sizeof *c->nodes, ends_first);
    return row->count;
}

static inline bool within(const Node *x, const Node *outer) {
    if (x->begin < outer->begin) return false;
    /* An empty one at the very begin of the other may as well come before it: times do not show that. */
    return x->end > outer->begin || (x->parent && x->parent == outer->id);
}

enum { EDGE_BEGIN, EDGE_END, EDGE_POINT };

void put_slices(Encoder *c, uint32_t number) {
    Row *row = &c->rows[number];
    uint32_t n = make_nodes(c, row), edges = 0, deep = 0;
    bool releases = false;
    Event e;
    row->count = 0;
    if (!n) return;
    will_change(c, row);
    for (uint32_t i = n; i-- > 0;) {
        Node *x = &c->nodes[i], *outer;
        while (deep && !within(x, outer = &c->nodes[c->stack[deep - 1]]) && x->end <= outer->begin)
            c->edges[edges++] = c->stack[--deep] << 2 | EDGE_BEGIN;
        outer = deep ? &c->nodes[c->stack[deep - 1]] : NULL;
        bool apart = outer && !within(x, outer);
        if (!apart && !x->point) {
            bool contains_delayed = false;
            int how = lies(&row->roots, x, &contains_delayed);
            apart = how == OVERLAPS;
            if ((how == DELAYED_TOO && x->parent) || (outer && outer->delay && outer->begin == x->begin)) x->delay = true;
            releases |= contains_delayed && !apart && !x->parent;
        }
        x->root = !outer && !apart;
        if (outer && !apart && x->end > x->begin) {
            Node *root = &c->nodes[c->stack[0]];
            root->crowded |= x->begin == root->begin && x->end < root->end;
        }
        if (apart) {
            event_at(c, x->event, &e);
            put_pair(c, row, &e, e.id ? e.id : ++c->serial | 1ull << 63);
        } else if (x->point) c->edges[edges++] = i << 2 | EDGE_POINT;
        else c->edges[edges++] = i << 2 | EDGE_END, c->stack[deep++] = i;
    }
    while (deep) c->edges[edges++] = c->stack[--deep] << 2 | EDGE_BEGIN;
    while (edges-- > 0 && !c->out.failed) {
        Node *x = &c->nodes[c->edges[edges] >> 2];
        uint32_t what = c->edges[edges] & 3;
        if (what == EDGE_END) {
            put_end(c, row, x->end);
            if (x->root) remember(&row->roots, x);
            continue;
        }
        event_at(c, x->event, &e);
        if (what == EDGE_POINT) put_point(c, row, &e);
        else if (!x->delay || !delay(c, number, &e)) put_begin(c, row, &e);
    }
    if (releases) put_delayed(c, number);
}
