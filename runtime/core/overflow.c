/* Overflow: what becomes of a step mark, and of any event when its thread's ring is more than half full.
 *
 * What goes first (shed.c) may fill a share of the ring, and of the memory for rings, so that what goes later finds
 * room. While a level may have more memory its thread goes on in another ring; after that the policy decides. */
#include "ring.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POLL 1000000 /* ns */
#define DENSEST 6 /* halvings of a sample */

int g_overflow;
static int64_t block_ns;
static atomic_uint drains, waiters; /* drains: a futex, counts those that are over */
static atomic_bool closed;
static __thread bool consumer __attribute__((tls_model("initial-exec"))); /* it cannot wait for itself */

bool overflow_set(const char *policy, double block_seconds) {
    static const char *const policies[] = {"drop_newest", "drop_oldest", "block", "sample"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(policy, policies[i])) {
            g_overflow = i;
            block_ns = block_seconds > 0 ? (int64_t)((block_seconds < 3600 ? block_seconds : 3600) * 1e9) : 0;
            atomic_store(&closed, false);
            return true;
        }
    return false;
}

static void wake_waiters(void) {
    atomic_fetch_add(&drains, 1);
    if (atomic_load(&waiters)) syscall(SYS_futex, &drains, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void overflow_drained(void) {
    consumer = true;
    wake_waiters();
}

void overflow_after_fork(void) {
    atomic_store(&waiters, 0);
    consumer = false;
}

void overflow_close(void) {
    atomic_store(&closed, true);
    wake_waiters();
}

/* Whether this thread holds the GIL; also for threads that Python does not know, and where there are subinterpreters. */
static bool holds_gil(void) {
#if PY_VERSION_HEX >= 0x030d0000
    PyThreadState *now = PyThreadState_GetUnchecked();
#else
    PyThreadState *now = _PyThreadState_UncheckedGet();
#endif
    return now && now == PyGILState_GetThisThreadState();
}

/* Waits for the consumer to take something out of this ring, until `deadline`. Nothing of the thread is half done
 * meanwhile, so it may fork, exit or be cancelled here. */
static bool wait_for_consumer(Ring *r, int64_t deadline) {
    if (r->waited_at == r->tail_seen || consumer || atomic_load(&closed)) return false;
    PyThreadState *python = holds_gil() ? PyEval_SaveThread() : NULL;
    bool moved = false;
    atomic_fetch_add(&waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&drains);
        int64_t left = deadline - clock_now();
        moved = atomic_load_explicit(&r->header->tail, memory_order_acquire) != r->tail_seen;
        if (moved || left <= 0 || atomic_load(&closed)) break;
        /* A drain that was under way may have taken nothing of it. */
        if (r->head != atomic_load_explicit(&r->header->drained, memory_order_relaxed)) ring_wake(r);
        if (control_joined() && left > POLL) left = POLL; /* the process that drains does not wake this one */
        struct timespec t = {left / 1000000000, left % 1000000000};
        syscall(SYS_futex, &drains, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0); /* however it ends, the ring is looked at */
    }
    atomic_fetch_sub(&waiters, 1);
    if (python) PyEval_RestoreThread(python);
    if (!moved) r->waited_at = r->tail_seen; /* not again before the consumer has been here */
    return moved;
}

/* Whether a sample leaves this event out: every second at first, then every fourth ... as the ring fills. By chance
 * rather than by turns, for training repeats itself. Steps are told apart from the rest by their level. */
static bool passes_over(Ring *r, uint32_t level, uint64_t used) {
    uint64_t slots = r->mask + 1, part = slots / 16, from = slots / 2;
    if (level > g_shedding.kept) return false;
    if (level == g_shedding.kept) part = slots / 32, from = slots - slots / 4;
    if (used <= from || !part) return false;
    uint64_t halvings = 1 + (used - from - 1) / part + (level < g_shedding.kept ? (g_shedding.kept - 1 - level) / 2 : 0);
    if (halvings > DENSEST) halvings = DENSEST;
    r->chance = r->chance * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
    return (r->chance >> 33) & ((1u << halvings) - 1);
}

/* Where the oldest is overwritten, what goes first overwrites its like only, and so do step marks, which have a ring of
 * their own under every policy once there is no room elsewhere. */
static Ring *own_kind(Thread *t, uint32_t level) {
    Ring **beside = level > g_shedding.kept ? &t->marks : level < g_shedding.kept ? &t->shed : NULL;
    if (!beside) return t->ring;
    if (!*beside) *beside = ring_beside(t);
    return *beside ? *beside : t->ring;
}

Room overflow_room(Thread *thread, const Event *event, uint64_t need, Ring **ring) {
    uint32_t level = UINT32_MAX;
    int64_t deadline = 0;
    for (;;) {
        Ring *r = *ring = thread->ring;
        uint64_t slots = r->mask + 1;
        r->tail_seen = atomic_load_explicit(&r->header->tail, memory_order_acquire);
        uint64_t used = r->head + need - r->tail_seen;
        if (used <= slots / 2 && !(g_overflow == DROP_OLDEST && event->kind == KIND_STEP)) return ROOM;
        uint64_t undrained = r->head + need - atomic_load_explicit(&r->header->drained, memory_order_relaxed);
        if (undrained > slots / 2) ring_wake(r);
        if (level == UINT32_MAX) level = shed_level(&g_shedding, event);
        if (g_overflow == DROP_OLDEST) {
            *ring = own_kind(thread, level);
            return ROOM;
        }
        bool first = level < g_shedding.kept;
        uint64_t all = shed_share(&g_shedding, g_shedding.kept, slots);
        uint64_t limit = g_overflow == SAMPLE && first ? shed_share(&g_shedding, g_shedding.kept - 1, slots)
                                                       : shed_share(&g_shedding, level, slots);
        if (used <= limit && g_overflow != SAMPLE) return ROOM;
        /* Who may have another ring is asked once for each visit of the consumer. */
        if (r->asked_at != r->tail_seen) r->granted = ring_may_move(), r->asked_at = r->tail_seen;
        if (level >= r->granted) {
            if (used <= (limit > all ? limit : all)) return ROOM;
            if (!ring_move_on(thread, level)) r->granted = level + 1;
            continue;
        }
        if (used <= limit) return passes_over(r, level, used) ? LEFT_OUT : ROOM;
        if (level > g_shedding.kept && (*ring = own_kind(thread, level)) != r) {
            /* A step mark finds room, and waits for nobody, however long the rings overflow. */
            r = *ring;
            r->tail_seen = atomic_load_explicit(&r->header->tail, memory_order_acquire);
            return r->head + need - r->tail_seen <= r->mask + 1 ? ROOM : NO_ROOM;
        }
        if (g_overflow == SAMPLE && first) return LEFT_OUT;
        if (g_overflow == BLOCK) {
            if (!deadline) deadline = clock_now() + block_ns;
            if (wait_for_consumer(r, deadline)) continue;
        }
        return NO_ROOM;
    }
}
