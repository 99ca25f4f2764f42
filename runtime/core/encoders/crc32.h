#ifndef STEPSCOPE_CRC32_H
#define STEPSCOPE_CRC32_H
#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes that follow those with the checksum `before` (0: none), as zlib.crc32 has it. */
uint32_t crc32_of(uint32_t before, const void *bytes, size_t len);

#endif
