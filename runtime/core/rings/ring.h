/* Declarations that the writing and the draining of rings share. */
#ifndef STEPSCOPE_RING_H
#define STEPSCOPE_RING_H
#include "core.h"

#define HEADER 4096
#define MAX_RINGS 4096
#define PAYLOAD 62 /* bytes of arguments in a slot */

typedef struct { /* layout read by runtime/recovery/ring_file.py */
    char magic[8];
    uint32_t version, slots, track;
    _Atomic uint32_t alive;
    int64_t tid;
    uint64_t assigned;                             /* counts the threads that were assigned a ring: their order */
    char pad0[24];
    _Atomic uint64_t head, reserve, produced;   /* writer: slots published, slots about to be written, serial */
    char pad1[40];
    _Atomic uint64_t tail;                      /* consumer: slots below are free */
    _Atomic uint64_t serial;                    /* consumer: serial of the first event at `tail` */
    _Atomic uint32_t signalled;
    uint32_t zero;
    _Atomic uint64_t drained; /* consumer: slots below were copied, and are free when the journals have them */
} Header;
_Static_assert(offsetof(Header, version) == 8 && offsetof(Header, slots) == 12 && offsetof(Header, track) == 16 &&
                   offsetof(Header, alive) == 20 && offsetof(Header, tid) == 24 && offsetof(Header, head) == 64 &&
                   offsetof(Header, reserve) == 72 && offsetof(Header, produced) == 80 && offsetof(Header, tail) == 128 &&
                   offsetof(Header, serial) == 136,
               "as recovery/ring_file.py reads it");

struct Ring {
    Header *header;
    Event *data;
    uint64_t head, tail_seen, serial; /* the writer's own */
    uint64_t mask;
    uint64_t refused_at; /* tail when its thread got no other ring */
    uint64_t waited_at; /* tail when a wait for the consumer was in vain */
    uint64_t backed, backed_end; /* slots below have memory; all have when it is as far as `backed_end` */
    bool clean, idle, anonymous;
    bool foreign; /* another process writes to it (attach.c) */
    atomic_bool trimming;
    uint32_t index;
    int64_t last_ts; /* consumer: when the event before a gap ended */
    uint64_t goal, goal_produced; /* consumer: as far as the drain under way goes */
    uint64_t copied, copied_serial, copied_lost; /* consumer: as far as the drain under way has copied */
    uint64_t cursor; /* consumer: as far as drains have copied */
    _Atomic uint64_t cursor_serial;
    uint64_t marked, marked_serial; /* consumer: as far as it had copied when journals were asked for it */
    _Atomic uint64_t lost; /* consumer */
};

typedef struct {
    char bytes[PAYLOAD];
    uint8_t kind, zero;
} More;
_Static_assert(sizeof(More) == sizeof(Event) && offsetof(More, kind) == offsetof(Event, kind), "slots have one shape");

/* Where the oldest is overwritten, a writer and the consumer may be at one slot at the same time: the consumer copies it,
 * then looks whether it was overwritten, and throws the copy away if so. Only these copies are kept from ThreadSanitizer,
 * which would call them races; where nothing is overwritten it sees them. */
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"), noinline, unused)) static void copy_unseen(void *to, const void *from, size_t size) {
    for (size_t i = 0; i < size; i++) ((volatile char *)to)[i] = ((const volatile char *)from)[i];
}
static inline void copy_slot(void *to, const void *from, size_t size, bool overwrites) {
    if (overwrites) copy_unseen(to, from, size);
    else memcpy(to, from, size);
}
#else
#define copy_slot(to, from, size, overwrites) memcpy(to, from, size)
#endif

/* Where a drain puts events. */
typedef struct {
    int64_t until, now; /* events that began between these two stay in their rings */
    Event *events;
    size_t count, room, gaps;
    char *args;
    size_t args_len, args_room;
    PyObject *events_object, *args_object;
} Out;
bool out_begin(Out *out, size_t slots,
               int64_t until); /* after the goals of rings are set; false and an exception without memory */
bool drain_arguments(PyObject *args, size_t *limit, int64_t *until); /* of the function `drain` */
PyObject *out_end(Out *out, bool more); /* (events, arguments, more) */
bool drain_ring(Ring *ring, Out *out); /* false when there was no room for all that began by `until` */
void ring_advance(Ring *ring); /* the drain has copied what was taken */
void ring_mark(Ring *ring); /* the journals are asked for what has been copied */
void ring_release(Ring *ring); /* they have what was marked: its slots are free */
extern bool g_late_release; /* slots are free when the journals have what was in them, not when it is copied */

bool rings_open(void); /* a session is */
Ring *ring_lend(uint32_t track, int64_t tid); /* to a thread; NULL if there is none */
void ring_return(Ring *ring, Ring *marks); /* what a thread had; either may be NULL */
bool thread_init(void);
void thread_after_fork(void);
uint32_t rings_to_drain(Ring **plan); /* room for MAX_RINGS */
void rings_each(void (*change)(Ring *)); /* of this process; for the consumer */
bool ring_move_on(Thread *thread); /* whether it has an empty ring now; the full one waits for the consumer */
Ring *ring_for_marks(Thread *thread); /* a ring for its step marks only; NULL without memory */
void ring_wake(Ring *r); /* the consumer */
void ring_wake_consumer(void); /* a signal handler may call it */
void rings_trim(void); /* gives back memory that a burst has left */
uint64_t drain_bytes(void); /* bytes of events and arguments drained so far */
void drain_after_fork(void);
uint64_t rings_ringless(void); /* events of threads that have no ring */
typedef struct { unsigned long long produced, drained, dropped, waiting; } RingCounts;
/* Adds what became of a ring's events, of which its thread has produced so many; NULL: no more than were drained. */
void ring_add_counts(const Ring *ring, const _Atomic uint64_t *produced, RingCounts *sums);
uint64_t drain_ringless(void); /* of the events that had no ring, those that were reported */

/* overflow.c: what becomes of an event when its thread's ring is more than half full. */
enum { DROP_NEWEST, DROP_OLDEST, BLOCK };
extern int g_overflow;
bool overflow_set(const char *policy, double block_seconds); /* false: no such policy */
bool overflow_room(Thread *thread, const Event *event, uint64_t slots, Ring **ring); /* false: it is dropped */
void overflow_drained(void); /* by the consumer: rings have room again */
void overflow_after_fork(void);
void overflow_close(void); /* nobody will drain any more */

#endif
