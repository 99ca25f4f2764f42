/* Overflow: room for a step mark, and for any event when its thread's ring is more than half full.
 *
 * While rings may have more memory, the thread of a full one goes on in another; after that the policy decides. */
#include "rings/ring.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POLL 1000000 /* ns */

int g_overflow;
static int64_t block_ns;
static atomic_uint drains, waiters; /* drains: a futex, counts those that are over */
static atomic_bool closed;
static __thread bool consumer __attribute__((tls_model("initial-exec"))); /* it cannot wait for itself */

bool overflow_set(const char *policy, double block_seconds) {
    static const char *const policies[] = {"drop_newest", "drop_oldest", "block"};
    for (int i = 0; i < 3; i++)
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
static bool has_gil(void) {
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
    PyThreadState *python = has_gil() ? PyEval_SaveThread() : NULL;
    bool moved = false;
    atomic_fetch_add(&waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(&drains);
        int64_t remaining = deadline - clock_now();
        moved = atomic_load_explicit(&r->header->tail, memory_order_acquire) != r->tail_seen;
        if (moved || remaining <= 0 || atomic_load(&closed)) break;
        /* A drain that was under way may have taken nothing of it. */
        if (r->head != atomic_load_explicit(&r->header->drained, memory_order_relaxed)) ring_wake(r);
        if (control_joined() && remaining > POLL) remaining = POLL; /* the process that drains does not wake this one */
        struct timespec t = {remaining / 1000000000, remaining % 1000000000};
        syscall(SYS_futex, &drains, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0); /* however it ends, the ring is looked at */
    }
    atomic_fetch_sub(&waiters, 1);
    if (python) PyEval_RestoreThread(python);
    if (!moved) r->waited_at = r->tail_seen; /* not again before the consumer has been here */
    return moved;
}

/* The ring for this thread's step marks, where other events neither overwrite them nor take their room. */
static Ring *marks_of(Thread *t) {
    if (!t->marks) t->marks = ring_for_marks(t);
    return t->marks ? t->marks : t->ring;
}

static uint64_t slots_used(Ring *r) {
    r->tail_seen = atomic_load_explicit(&r->header->tail, memory_order_acquire);
    return r->head - r->tail_seen;
}

bool overflow_room(Thread *thread, const Event *event, uint64_t need, Ring **ring) {
    bool mark = event->kind == KIND_STEP;
    int64_t deadline = 0;
    for (;;) {
        Ring *r = *ring = thread->ring;
        uint64_t slots = r->mask + 1, used = slots_used(r) + need;
        uint64_t undrained = r->head + need - atomic_load_explicit(&r->header->drained, memory_order_relaxed);
        if (undrained > slots / 2) ring_wake(r);
        if (g_overflow == DROP_OLDEST && mark) return *ring = marks_of(thread), true;
        /* The oldest is not overwritten while a journal has yet to write what was drained: the thread goes on in another ring. */
        if (used <= slots || (g_overflow == DROP_OLDEST && undrained > slots)) return true;
        /* Asked once for each visit of the consumer. */
        if (r->refused_at != r->tail_seen) {
            if (ring_move_on(thread)) continue;
            r->refused_at = r->tail_seen;
        }
        if (g_overflow == DROP_OLDEST) return true;
        if (mark) { /* it waits for nobody, however long the rings overflow */
            *ring = marks_of(thread);
            return slots_used(*ring) + need <= slots;
        }
        if (g_overflow != BLOCK) return false;
        if (!deadline) deadline = clock_now() + block_ns;
        if (!wait_for_consumer(r, deadline)) return false;
    }
}
