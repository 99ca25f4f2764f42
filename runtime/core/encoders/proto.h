/* Protocol buffers, written field by field to room that was made before (protobuf.dev, "Encoding").
 *
 * A tag is the field's number and wire type as they are written: TAG(11, LEN). Of a message that is in another one the
 * length comes first: `proto_open` leaves one byte for it, and `proto_close` moves what is longer than that can say. */
#ifndef STEPSCOPE_PROTO_H
#define STEPSCOPE_PROTO_H

#include "encoders/output.h"

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
    if (!output_reserve(o, 2 * PROTO_SLACK)) return 0;
    o->at = proto_varint(o->at, tag) + 1;
    return (size_t)(o->at - PyBytes_AS_STRING(o->bytes));
}

static inline void proto_close(Output *o, size_t from) {
    if (!output_reserve(o, 2 * PROTO_SLACK)) return;
    char *begin = PyBytes_AS_STRING(o->bytes) + from;
    size_t len = (size_t)(o->at - begin);
    if (len >= 0x80) {
        size_t more = (size_t)(63 - __builtin_clzll(len)) / 7;
        memmove(begin + more, begin, len);
        o->at += more;
    }
    proto_varint(begin - 1, len);
}

#endif
