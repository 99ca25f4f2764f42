/* Readings at the begin of a step. */
#ifndef STEPSCOPE_READINGS_H
#define STEPSCOPE_READINGS_H
#include "core.h"
#include <sys/types.h>

typedef struct {
    int fd;
    dev_t device;
    ino_t inode;
} ProcFile; /* fd: 1 + the descriptor, 0 = none */
typedef struct {
    uint64_t thread; /* serial of the one whose files are open */
    ProcFile schedstat, statm, io;
} Readings;

/* Writes the readings of the calling thread as counters of a time, on the track of a step mark. */
void readings_write(Readings *readings, Thread *thread, const Event *mark, int64_t at);
void readings_close(Readings *readings);
void readings_init(void);

/* sampling.c */
void sampling_init(void);

#endif
