/* JSON text: numbers and strings written to room that was made before, and a check of JSON from elsewhere.
 * The write_… functions return where they ended. Nothing here needs the GIL. */
#ifndef STEPSCOPE_JSON_H
#define STEPSCOPE_JSON_H

#include "core.h"
#include <ctype.h>
#include <stdlib.h>

static const char JSON_PAIRS[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

static inline char *write_uint(char *p, uint64_t n) { /* at most 20 bytes */
    char text[20], *q = text + 20;
    for (; n >= 100; n /= 100) q -= 2, memcpy(q, JSON_PAIRS + n % 100 * 2, 2);
    if (n >= 10) q -= 2, memcpy(q, JSON_PAIRS + n * 2, 2);
    else *--q = (char)('0' + n);
    size_t len = (size_t)(text + 20 - q);
    memcpy(p, q, len);
    return p + len;
}

static inline char *write_int(char *p, int64_t n) {
    if (n < 0) *p++ = '-';
    return write_uint(p, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
}

/* The shortest of 15 or 17 digits that reads back the same, at most 32 bytes; the locale must have a decimal point. */
static inline char *write_double(char *p, double v) {
    if (v != v || v - v != 0) { /* JSON has no such numbers */
        const char *name = v != v ? "\"NaN\"" : v > 0 ? "\"Infinity\"" : "\"-Infinity\"";
        return memcpy(p, name, strlen(name)), p + strlen(name);
    }
    if (fabs(v) < 1e15 && v == (double)(int64_t)v && !(v == 0 && signbit(v))) {
        p = write_int(p, (int64_t)v);
        return memcpy(p, ".0", 2), p + 2;
    }
    int n = snprintf(p, 32, "%.15g", v);
    if (strtod(p, NULL) != v) n = snprintf(p, 32, "%.17g", v);
    if (!strpbrk(p, ".e")) memcpy(p + n, ".0", 2), n += 2; /* stays a float for who reads it */
    return p + n;
}

/* Length of the valid UTF-8 sequence at `s`, 0 if there is none. */
static inline size_t utf8_sequence(const unsigned char *s, size_t remaining) {
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > remaining) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool bad = n > 2 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
                         (s[0] == 0xf4 && s[1] > 0x8f));
    return bad ? 0 : n;
}

/* A JSON string of any bytes, at most 6 per byte and the quotes; what is not UTF-8 becomes U+FFFD. */
static inline char *write_text(char *p, const char *text, size_t len) {
    *p++ = '"';
    for (size_t i = 0, n; i < len; i += n) {
        unsigned char c = (unsigned char)text[i];
        n = utf8_sequence((const unsigned char *)text + i, len - i);
        if (n == 0) memcpy(p, "\xef\xbf\xbd", 3), p += 3, n = 1;
        else if (c == '"' || c == '\\') *p++ = '\\', *p++ = (char)c;
        else if (c == '\n' || c == '\t') *p++ = '\\', *p++ = c == '\n' ? 'n' : 't'; /* Perfetto shows escapes as they are */
        else if (c < 0x20 || c == 0x7f) {
            memcpy(p, "\\u00", 4);
            p[4] = (char)('0' + (c >> 4)), p[5] = "0123456789abcdef"[c & 15], p += 6;
        } else memcpy(p, text + i, n), p += n;
    }
    *p++ = '"';
    return p;
}

/* json_…: the end of what begins at `p`, NULL where that is not there. */
static inline const char *json_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) p++;
    return p;
}

static inline const char *json_digits(const char *p, const char *end) {
    const char *from = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p > from ? p : NULL;
}

static inline const char *json_number(const char *p, const char *end) {
    if (p < end && *p == '-') p++;
    if (p < end && *p == '0') p++;
    else p = json_digits(p, end);
    if (p && p < end && *p == '.') p = json_digits(p + 1, end);
    if (p && p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        p = json_digits(p, end);
    }
    return p;
}

static inline const char *json_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"';) {
        size_t n = utf8_sequence((const unsigned char *)p, (size_t)(end - p));
        if (n == 0 || (unsigned char)*p < 0x20) return NULL;
        if (*p == '\\') {
            if (++p == end || !*p || !strchr("\"\\/bfnrtu", *p)) return NULL;
            for (int i = 0, hex = *p == 'u' ? 4 : 0; i < hex; i++)
                if (++p == end || !isxdigit((unsigned char)*p)) return NULL;
        }
        p += n;
    }
    return p < end ? p + 1 : NULL;
}

static inline const char *json_value(const char *p, const char *end, int depth) {
    static const char *const words[] = {"null", "true", "false"};
    p = json_space(p, end);
    if (p == end || depth > 32) return NULL;
    for (int i = 0; i < 3; i++)
        if ((size_t)(end - p) >= strlen(words[i]) && !memcmp(p, words[i], strlen(words[i]))) return p + strlen(words[i]);
    if (*p == '"') return json_string(p, end);
    if (*p != '[' && *p != '{') return json_number(p, end);
    char close = *p == '[' ? ']' : '}';
    p = json_space(p + 1, end);
    if (p < end && *p == close) return p + 1;
    for (;; p++) {
        if (close == '}') {
            p = json_space(p, end);
            p = p < end && *p == '"' ? json_string(p, end) : NULL;
            p = p ? json_space(p, end) : end;
            if (p == end || *p++ != ':') return NULL;
        }
        p = json_value(p, end, depth + 1);
        p = p ? json_space(p, end) : end;
        if (p == end) return NULL;
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
    }
}

/* Whether these bytes are one JSON value. Nesting is followed 32 deep. */
static inline bool json_valid(const char *text, size_t len) {
    const char *end = json_value(text, text + len, 0);
    return end && json_space(end, text + len) == text + len;
}

#endif
