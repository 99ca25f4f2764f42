/* Declarations that the parts of Perfetto's encoder share: perfetto.c writes packets, perfetto_rows.c says in which order,
 * perfetto_arguments.c writes debug annotations. */
#ifndef STEPSCOPE_PERFETTO_H
#define STEPSCOPE_PERFETTO_H

#include "encoders/output.h"

/* Protocol buffers, written field by field to room that was made before (protobuf.dev, "Encoding").
 *
 * A tag is the field's number and wire type as they are written: TAG(11, LEN). Of a message that is in another one the
 * length comes first: `proto_open` leaves one byte for it, and `proto_close` moves what is longer than that can say. */
enum { VARINT, FIXED64, LEN };
#define TAG(field, type) ((field) << 3 | (type))
#define PROTO_SLACK 64 /* bytes that any field but a text needs, and what the lengths around it may grow by */

static inline char *proto_varint(char *p, uint64_t n) { /* at most 10 bytes */
    for (; n >= 0x80; n >>= 7) *p++ = (char)(n | 0x80);
    *p++ = (char)n;
    return p;
}

static inline void proto_uint(Output *o, uint32_t tag, uint64_t n) { o->at = proto_varint(proto_varint(o->at, tag), n); }

static inline void proto_double(Output *o, uint32_t tag, double value) {
    o->at = proto_varint(o->at, tag);
    output_put(o, &value, sizeof value); /* little-endian, as this machine is */
}

/* Valid UTF-8; makes its own room, and leaves PROTO_SLACK. */
static inline void proto_text(Output *o, uint32_t tag, const char *text, size_t len) {
    if (!output_reserve(o, len + 2 * PROTO_SLACK)) return;
    proto_uint(o, tag, len);
    output_put(o, text, len);
}

/* Where the message begins, for `proto_close`. Leaves PROTO_SLACK. */
static inline size_t proto_open(Output *o, uint32_t tag) {
    output_reserve(o, 2 * PROTO_SLACK);
    o->at = proto_varint(o->at, tag) + 1;
    return (size_t)(o->at - o->begin);
}

static inline void proto_close(Output *o, size_t from) {
    output_reserve(o, 2 * PROTO_SLACK);
    if (o->failed) return;
    char *begin = o->begin + from;
    size_t len = (size_t)(o->at - begin);
    if (len >= 0x80) {
        size_t more = (size_t)(63 - __builtin_clzll(len)) / 7;
        memmove(begin + more, begin, len);
        o->at += more;
    }
    proto_varint(begin - 1, len);
}

#define ROOTS 8 /* outermost spans of a row that are remembered, to see how the next one lies to them */

typedef struct {
    int64_t begin, end;
    bool delayed, crowded;
} Root; /* crowded: what begins with it ends before it */
typedef struct {
    uint32_t used;
    Root at[ROOTS];
} Roots;

/* A row of the viewer: a sequence of packets, with a clock and interned names of its own. */
typedef struct {
    uint64_t uuid;
    int64_t last;      /* time of its last packet: its clock has differences */
    uint32_t sequence; /* 0: none yet, or its state was forgotten */
    uint32_t iids[3];  /* interned so far, by kind */
    uint32_t track;
    uint32_t at, count; /* its events in the block under way */
    Roots roots, former; /* former: before the call that changed them last */
    uint32_t call;
} Row;

enum { INTERN_CATEGORY, INTERN_NAME, INTERN_KEY };
typedef struct {
    uint64_t key;
    uint32_t iid;
} Interned;
typedef struct { uint32_t kind, iid, id; } Fresh;

/* A span whose begin is written later, when it is known what encloses it. */
typedef struct {
    Event event;
    char *args;
    uint32_t row, order;
    bool written;
} DelayedBegin;

/* A span or instant of a row, in a block. */
typedef struct {
    int64_t begin, end;
    uint64_t id, parent;
    uint32_t event;
    bool point, delay, root, crowded; /* delay: its begin is delayed; root: nothing of this block encloses it */
} Node;

typedef struct {
    PyObject_HEAD
    Output out;
    uint64_t base;     /* distinguishes the rows of one run from those of others */
    int64_t pid;       /* of the run, whose process is described by others */
    uint64_t serial;   /* ids of spans that do not nest and have none */
    int32_t window;
    uint32_t call;     /* number of the call under way */
    bool numbered, formerly_numbered; /* a step of this window was seen; before the last call */
    bool busy;
    const char *events, *heap;
    size_t n, heap_len;
    Row *rows;
    uint32_t rows_used, rows_room, sequences;
    uint32_t *row_of, row_of_room; /* by track: 1 + its row */
    Interned *interned;
    uint32_t interned_used, interned_room;
    Fresh *fresh;      /* interned by the packet under way */
    uint32_t fresh_used, fresh_room;
    DelayedBegin *delayed;
    uint32_t delayed_count, delayed_before, delayed_room; /* before: those of earlier calls */
    uint32_t *order, *edges, *stack, *active, active_used;
    Node *nodes;
    size_t room;       /* events that the arrays above are made for */
} Encoder;

/* perfetto.c */
static inline void event_at(const Encoder *c, size_t i, Event *e) { memcpy(e, c->events + i * sizeof *e, sizeof *e); }
bool make_room(void **array, uint32_t *room, size_t need, size_t size); /* zeroed; false without memory */
uint32_t intern(Encoder *c, Row *row, uint32_t kind, uint32_t id);      /* 0 without memory */
bool first_time(Encoder *c, uint64_t uuid);                             /* since the state was forgotten */
uint64_t mix(uint64_t base, uint64_t kind, uint64_t id);
void put_begin(Encoder *c, Row *row, const Event *e);
void put_end(Encoder *c, Row *row, int64_t ts);
void put_point(Encoder *c, Row *row, const Event *e);
void put_pair(Encoder *c, Row *row, const Event *e, uint64_t id);

/* perfetto_rows.c */
Row *new_row(Encoder *c, uint32_t track); /* or that of what has none; NULL without memory */
static inline Row *row_of(Encoder *c, uint32_t track) {
    uint32_t known = track < c->row_of_room ? c->row_of[track] : 0;
    return known ? &c->rows[known - 1] : new_row(c, track);
}
void describe_row(Encoder *c, Row *row);
uint64_t described_counter(Encoder *c, const Row *row, uint32_t name);  /* its uuid */
uint64_t process_uuid(const Encoder *c, int64_t pid);
void put_slices(Encoder *c, uint32_t row);
void put_delayed(Encoder *c, int64_t row); /* of one row, or of all: -1 */

/* perfetto_arguments.c */
void put_annotations(Encoder *c, Row *row, const Event *e);
void put_annotation_uint(Encoder *c, const char *name, uint64_t value);
void put_annotation_true(Encoder *c, const char *name);

#endif
