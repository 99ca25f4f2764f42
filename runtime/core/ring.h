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
    uint64_t given;                             /* counts the threads that were given a ring: their order */
    char pad0[24];
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
    _Atomic uint64_t lost;             /* consumer */
};

typedef struct { char bytes[PAYLOAD]; uint8_t kind, zero; } More;
_Static_assert(sizeof(More) == sizeof(Event) && offsetof(More, kind) == offsetof(Event, kind), "slots have one shape");

/* Where a drain puts what it takes. */
typedef struct {
    Event *events;
    size_t count, room, gaps;
    char *args;
    size_t args_len, args_room;
    PyObject *events_object, *args_object;
} Out;
bool out_begin(Out *out, size_t slots);        /* false and an exception without memory */
PyObject *out_end(Out *out, bool more);        /* (events, arguments, more) */
bool drain_ring(Ring *ring, Out *out, uint32_t gap_name); /* false when there was no room for all */

uint32_t rings_to_drain(Ring **plan); /* room for MAX_RINGS */
void rings_trim(void);                /* gives back memory that a burst has left */
uint64_t drain_bytes(void);           /* bytes of events and arguments drained so far */
void drain_after_fork(void);

#endif
