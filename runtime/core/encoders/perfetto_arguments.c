/* An event's arguments as Perfetto's debug annotations: typed values, and lists and mappings as what they hold.
 *
 * Its trace processor shows no integers above 2^63 and no NaN, so those are written as text. */
#include "encoders/perfetto.h"
#include "encoders/json.h"
#include <locale.h>

/* Fields of DebugAnnotation. */
enum {
    NAME_IID = TAG(1, VARINT),
    BOOL = TAG(2, VARINT),
    INT = TAG(4, VARINT),
    DOUBLE = TAG(5, FIXED64),
    TEXT = TAG(6, LEN),
    NAME = TAG(10, LEN),
    ENTRY = TAG(11, LEN),
    ELEMENT = TAG(12, LEN),
    ANNOTATION = TAG(4, LEN)
};

static void put_double(Output *o, double value) {
    if (value - value == 0) proto_double(o, DOUBLE, value);
    else if (value != value) proto_text(o, TEXT, "NaN", 3);
    else if (value > 0) proto_text(o, TEXT, "Infinity", 8);
    else proto_text(o, TEXT, "-Infinity", 9);
}

static void put_uint(Output *o, uint64_t value) {
    char text[20];
    if (value <= INT64_MAX) proto_uint(o, INT, value);
    else proto_text(o, TEXT, text, (size_t)(write_uint(text, value) - text));
}

/* Any bytes; what is not UTF-8 becomes U+FFFD. */
static void put_bytes(Output *o, const char *text, size_t len) {
    size_t from = proto_open(o, TEXT);
    if (!output_reserve(o, len * 3 + PROTO_SLACK)) return;
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_sequence((const unsigned char *)text + i, len - i);
        if (n) output_put(o, text + i, n);
        else output_put(o, "\xef\xbf\xbd", 3), n = 1;
    }
    proto_close(o, from);
}

static unsigned hex4(const char *p) {
    char text[5] = {p[0], p[1], p[2], p[3], 0};
    return (unsigned)strtoul(text, NULL, 16);
}

static void put_utf8(Output *o, unsigned code) {
    if (code < 0x80) *o->at++ = (char)code;
    else if (code < 0x800) *o->at++ = (char)(0xc0 | code >> 6), *o->at++ = (char)(0x80 | (code & 63));
    else if (code < 0x10000) {
        *o->at++ = (char)(0xe0 | code >> 12), *o->at++ = (char)(0x80 | (code >> 6 & 63)), *o->at++ = (char)(0x80 | (code & 63));
    } else {
        *o->at++ = (char)(0xf0 | code >> 18), *o->at++ = (char)(0x80 | (code >> 12 & 63));
        *o->at++ = (char)(0x80 | (code >> 6 & 63)), *o->at++ = (char)(0x80 | (code & 63));
    }
}

/* json_…: what begins at `p` is valid JSON; returns its end. */
static const char *json_put_text(Output *o, uint32_t tag, const char *p, const char *end) {
    static const char plain[] = "\"\\/\b\f\n\r\t", names[] = "\"\\/bfnrt";
    const char *after = json_string(p, end);
    size_t from = proto_open(o, tag);
    if (!output_reserve(o, (size_t)(after - p) + PROTO_SLACK)) return after;
    for (p++; p < after - 1; p++) {
        if (*p != '\\') *o->at++ = *p;
        else if (*++p != 'u') *o->at++ = plain[strchr(names, *p) - names];
        else {
            unsigned code = hex4(p + 1), low = code >> 10 == 0x36 && p[5] == '\\' && p[6] == 'u' ? hex4(p + 7) : 0;
            p += 4;
            if (low >> 10 == 0x37) code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff)), p += 6;
            put_utf8(o, code >> 11 == 0x1b ? 0xfffd : code); /* half of a pair is no character */
        }
    }
    proto_close(o, from);
    return after;
}

static const char *json_put_number(Output *o, const char *p, const char *end) {
    static locale_t plain; /* made by whoever comes first: threads that race lose a few bytes, once */
    const char *after = json_number(p, end);
    size_t len = (size_t)(after - p);
    char text[64], *stop;
    if (len >= sizeof text) { /* more digits than any number has here */
        proto_text(o, TEXT, p, len);
        return after;
    }
    memcpy(text, p, len);
    text[len] = 0;
    if (!plain) plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    if (!*stop && !errno) proto_uint(o, INT, (uint64_t)value);
    else if (!*stop) proto_text(o, TEXT, text, len);
    else put_double(o, strtod_l(text, NULL, plain));
    return after;
}

static const char *json_put(Output *o, const char *p, const char *end) {
    output_reserve(o, 2 * PROTO_SLACK);
    p = json_space(p, end);
    if (*p == '"') return json_put_text(o, TEXT, p, end);
    if (*p == 'n') return proto_text(o, TEXT, p, 4), p + 4;
    if (*p == 't') return proto_uint(o, BOOL, 1), p + 4;
    if (*p == 'f') return proto_uint(o, BOOL, 0), p + 5;
    if (*p != '[' && *p != '{') return json_put_number(o, p, end);
    bool mapping = *p == '{';
    p = json_space(p + 1, end);
    if (*p == ']' || *p == '}') return proto_text(o, TEXT, mapping ? "{}" : "[]", 2), p + 1;
    for (;; p++) {
        size_t from = proto_open(o, mapping ? ENTRY : ELEMENT);
        if (mapping) p = json_space(json_put_text(o, NAME, json_space(p, end), end), end) + 1;
        p = json_space(json_put(o, p, end), end);
        proto_close(o, from);
        if (*p != ',') return p + 1;
    }
}

static bool put_value(Output *o, uint8_t type, const char *value, size_t len) {
    int64_t i = 0;
    double d = 0;
    if (len == 8) memcpy(&i, value, 8), memcpy(&d, value, 8);
    switch (type) {
    case 'i': proto_uint(o, INT, (uint64_t)i); return len == 8;
    case 'u': put_uint(o, (uint64_t)i); return len == 8;
    case 'd': put_double(o, d); return len == 8;
    case 'b': proto_uint(o, BOOL, len == 1 && *value); return len == 1;
    case 'n': proto_text(o, TEXT, "null", 4); return len == 0;
    case 'j':
        if (json_valid(value, len)) return json_put(o, value, value + len), true; /* fall through */
    case 's': put_bytes(o, value, len); return true;
    default: proto_text(o, TEXT, "null", 4); return false;
    }
}

static size_t open_named(Encoder *c, const char *name) {
    size_t from = proto_open(&c->out, ANNOTATION);
    proto_text(&c->out, NAME, name, strlen(name));
    return from;
}

void put_annotation_true(Encoder *c, const char *name) {
    size_t from = open_named(c, name);
    proto_uint(&c->out, BOOL, 1);
    proto_close(&c->out, from);
}

void put_annotation_uint(Encoder *c, const char *name, uint64_t value) {
    size_t from = open_named(c, name);
    put_uint(&c->out, value);
    proto_close(&c->out, from);
}

static size_t open_key(Encoder *c, Row *row, uint32_t key) {
    size_t from = proto_open(&c->out, ANNOTATION);
    uint32_t iid = intern(c, row, INTERN_KEY, key);
    proto_uint(&c->out, NAME_IID, iid);
    return from;
}

void put_annotations(Encoder *c, Row *row, const Event *e) {
    Output *o = &c->out;
    if (e->flags & FLAG_ARG_INLINE) {
        size_t from = open_key(c, row, e->args_at);
        proto_uint(o, INT, e->args_len);
        proto_close(o, from);
        return;
    }
    if (!e->args_len) return;
    Arguments all = arguments_of(e, c->heap, c->heap_len);
    ArgItem item;
    const char *value;
    while (argument_next(&all, &item, &value)) {
        size_t from = open_key(c, row, item.key);
        all.good = put_value(o, item.type, value, item.len);
        proto_close(o, from);
    }
    if (!all.good) put_annotation_true(c, "bad arguments");
}
