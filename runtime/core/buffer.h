/* Bytes that grow. */
#ifndef STEPSCOPE_BUFFER_H
#define STEPSCOPE_BUFFER_H
#include "core.h"
#include <stdlib.h>

typedef struct {
    uint8_t *bytes;
    size_t len, room;
    bool failed; /* no memory: something was not added */
} Buffer;

static inline uint8_t *buffer_add(Buffer *b, size_t more) {
    if (b->len + more > b->room) {
        size_t room = (b->len + more) * 3 / 2 + 4096;
        uint8_t *bytes = realloc(b->bytes, room);
        if (!bytes) {
            b->failed = true;
            return NULL;
        }
        b->bytes = bytes, b->room = room;
    }
    b->len += more;
    return b->bytes + b->len - more;
}

static inline void buffer_put(Buffer *b, const void *bytes, size_t len) {
    uint8_t *to = buffer_add(b, len);
    if (to && len) memcpy(to, bytes, len);
}

#endif
