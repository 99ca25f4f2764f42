#ifndef STEPSCOPE_ZSTD_H
#define STEPSCOPE_ZSTD_H
#include <stddef.h>

size_t zstd_bound(size_t len); /* bytes that a compressed block takes at most; 0 without zstd */
/* Compresses at level 1; the bytes written, or 0 if that is not possible. One thread at a time. */
size_t zstd_compress(void *to, size_t room, const void *from, size_t len);

#endif
