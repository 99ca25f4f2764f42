/* zstd, as the system has it: `libzstd.so.1` is loaded when it is first needed. Its functions are a stable interface. */
#ifndef STEPSCOPE_ZSTD_H
#define STEPSCOPE_ZSTD_H

#include <stdbool.h>
#include <stddef.h>

bool zstd_available(void);                     /* any thread */
size_t zstd_bound(size_t len);                 /* bytes that a compressed block takes at most */
/* Compresses at level 1; the bytes written, or 0 if that is not possible. One thread at a time. */
size_t zstd_compress(void *to, size_t room, const void *from, size_t len);
/* Decompresses one block of a known length; false if it is damaged or of another length. Any thread. */
bool zstd_decompress(void *to, size_t len, const void *from, size_t stored);

#endif
