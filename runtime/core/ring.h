/* What the writing and the draining of rings share. */
#ifndef STEPSCOPE_RING_H
#define STEPSCOPE_RING_H
#include "core.h"

#define HEADER 4096
#define MAX_RINGS 4096
#define PAYLOAD 62 /* bytes of arguments in a slot */

typedef struct { /* layout read by runtime/recovery/session_files.py */
    char magic[8];
    uint32_t version, slots, track;
    _Atomic uint32_t alive;
    int64_t tid;
    char pad0[32];
    _Atomic uint64_t head, reserve, produced;   /* writer: slots published, slots about to be written, serial */
    char pad1[40];
    _Atomic uint64_t tail;                      /* consumer */
    _Atomic uint64_t serial;                    /* consumer: serial of the next event expected */
    _Atomic uint32_t signalled;
} Header;

struct Ring {
    Header *header;
    Event *data;
    uint64_t head, tail_seen, serial;  /* the writer's own */
    uint64_t mask, limit, limit_low;
    uint64_t refused_at;               /* tail when no other ring could be had */
    uint64_t backed, backed_end;       /* slots below have memory; all have when it is as far as `backed_end` */
    bool oldest, clean, idle, anonymous;
    atomic_bool trimming;
    uint32_t index;
    int64_t last_ts;                   /* consumer: when the event before a gap ended */
    uint64_t goal, goal_produced;      /* consumer: as far as the drain under way goes */
    uint64_t taken, taken_serial, taken_lost; /* consumer: what it has copied and not given free yet */
    _Atomic uint64_t lost;             /* consumer */
};

typedef struct { char bytes[PAYLOAD]; uint8_t kind, zero; } More;
_Static_assert(sizeof(More) == sizeof(Event) && offsetof(More, kind) == offsetof(Event, kind), "slots have one shape");

uint32_t rings_to_drain(Ring **plan); /* room for MAX_RINGS */
void rings_trim(void);                /* gives back memory that a burst has left */
uint64_t drain_bytes(void);           /* bytes of events and arguments drained so far */
void drain_after_fork(void);
/* spool.c: keeps what was drained, while a file for it is open */
void spool_write(const Event *events, size_t count, const char *args, size_t args_len);
void spool_after_fork(void);

#endif
