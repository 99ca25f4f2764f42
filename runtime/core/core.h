/* Declarations that the parts of the native core share: the event record, strings, rings and stacks.
 *
 * An event passes through the folders in this order: spans/ (user events, steps, and the stacks and tasks that they belong to),
 * tables/ (names and tracks), rings/ (one for each thread, and the drain), session/ (rings of joined processes), blocks/ (passes over
 * drained events), encoders/ (journal, Chrome, Perfetto, Arrow). system/ reads the operating system, and handles threads and signals.
 *
 * Threads. Recording functions run on any thread; those named `*_object` need the GIL, the others do not
 * and take no lock on their fast path. Draining and encoding run on one consumer thread, GIL released where it is much.
 */
#ifndef STEPSCOPE_CORE_H
#define STEPSCOPE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "system/main_thread.h"

#define MAX_NAME 1024            /* bytes of UTF-8 kept of a name; the rest is cut and counted */
#define MAX_VALUE 4096           /* bytes kept of one argument value */
#define MAX_ARGS_BYTES 16384     /* bytes of arguments kept of one event */
#define MAX_STRINGS (1u << 20)   /* names of a process; further ones share one name and are counted */
#define MAX_EARLY_NAMES (1u << 16) /* names of spans that were entered while nothing was recorded; then, none new */
#define FIRST_NAME 1024          /* ids below are categories, so that a category fits 16 bits */
#define STACK_FRAMES 126         /* open spans of one stack that are kept for self time and recovery */

#define SMALL_WORK 1024          /* events: work on no more takes less time than handing the GIL over and back */

/* Lets go of the GIL for work on so many events, if that is worth it. */
static inline PyThreadState *release_gil_for(size_t events) { return events > SMALL_WORK ? PyEval_SaveThread() : NULL; }
static inline void reacquire_gil(PyThreadState *released) {
    if (released) acquire_gil(released);
}

/* One event, 64 bytes: the record of rings, blocks, journal and wire (runtime/events/record.py: EVENT_DTYPE). */
typedef struct {
    int64_t ts;        /* ns, monotonic clock of the process; spans: when entered */
    int64_t dur;       /* ns; spans and gaps */
    union {
        int64_t self;  /* spans: ns not spent in child spans of the same stack; gaps: serial behind them in their ring */
        double value;  /* counters */
    };
    uint64_t id;       /* spans: unique in the process; flows and async events: what links them */
    uint64_t parent;   /* id of the enclosing span, 0 = none; gaps: 1 + the number of their ring */
    uint32_t args_at;  /* offset of the arguments in the batch's heap; ARG_INLINE: name id of the key */
    uint32_t args_len; /* bytes of arguments; ARG_INLINE: the value, an unsigned integer */
    uint32_t name;
    uint32_t track;
    int32_t step;      /* assigned by windows; -1 = outside any step */
    uint16_t category;
    uint8_t kind;
    uint8_t flags;
} Event;
_Static_assert(sizeof(Event) == 64, "an event is one cache line");

enum {
    KIND_SPAN = 1,
    KIND_INSTANT,
    KIND_COUNTER,
    KIND_FLOW_START,
    KIND_FLOW_STEP,
    KIND_FLOW_END,
    KIND_ASYNC_BEGIN,
    KIND_ASYNC_END,
    KIND_MEMORY,
    KIND_METADATA,
    KIND_STEP,
    KIND_GAP,
    KIND_MORE = 255 /* ring slots only: arguments of the event before */
};
enum {
    FLAG_ARG_INLINE = 1, /* one unsigned integer argument, held in the record */
    FLAG_CLIPPED = 2,    /* cut at the border of what was recorded */
    FLAG_OPEN = 4,       /* had not ended when it was written */
    FLAG_ASYNC = 8,      /* does not nest on its track: drawn as an async pair */
    FLAG_ERROR = 16,     /* left by an exception */
    FLAG_NUMBERED = 64,  /* the name is shown followed by '#' and the step */
    FLAG_NO_NUMBER = 128 /* a counter was given what is no number: its value is NaN */
};

/* Arguments: items of 8 bytes header and `len` bytes value, one after the other, unaligned. */
typedef struct {
    uint32_t key;  /* name id */
    uint16_t len;
    uint8_t type;  /* 'i' int64, 'u' uint64, 'd' double, 'b' one byte, 'n' nothing, 's' UTF-8, 'j' JSON text */
    uint8_t zero;
} ArgItem;
_Static_assert(sizeof(ArgItem) == 8, "argument header");

/* How many of the sorted times, of which `stride` is the distance, are not later. */
static inline size_t times_until(const int64_t *sorted, size_t stride, size_t count, int64_t time) {
    size_t low = 0;
    while (low < count) {
        size_t middle = low + (count - low) / 2;
        if (sorted[middle * stride] <= time) low = middle + 1;
        else count = middle;
    }
    return low;
}

static inline uint64_t hash_text(const char *text, size_t len) {
    uint64_t hash = len * 0x9e3779b97f4a7c15u, word;
    for (; len >= 8; text += 8, len -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, len);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 32;
}

static inline int64_t clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Around a fork the locks are held, so that the child finds whole tables; it gets new locks and closes the files. */
enum { FORK_BEFORE, FORK_PARENT, FORK_CHILD };
static inline void fork_lock(pthread_mutex_t *lock, int phase) {
    if (phase == FORK_BEFORE) pthread_mutex_lock(lock);
    else if (phase == FORK_PARENT) pthread_mutex_unlock(lock);
    else pthread_mutex_init(lock, NULL);
}

/* strings.c: every name has one id per process, for ever. */
typedef struct {
    const char *text;   /* UTF-8, zero terminated, no surrogates */
    const char *json;   /* the same escaped for a JSON string, without quotes */
    uint32_t len, json_len;
} String;
uint32_t strings_intern(const char *utf8, size_t len);          /* any thread */
uint32_t strings_intern_object(PyObject *name);                 /* 0 and an exception if not a str */
uint32_t strings_intern_early(PyObject *name); /* of what may never be recorded: 0 without one after so many new names */
uint16_t strings_category(const char *utf8, size_t len);        /* any thread; 0 when there are too many */
int strings_category_object(PyObject *text, uint16_t *category); /* -1 and an exception if not a str */
const String *strings_get(uint32_t id);                         /* any thread; never NULL */
int strings_open(const char *directory);                        /* later strings are appended to a file there */
void strings_close(void);
void strings_fork(int phase);
size_t utf8_cut(const char *utf8, size_t len, size_t most);    /* the length that keeps whole characters */
const char *utf8_object(PyObject *text, Py_ssize_t *len, PyObject **encoded); /* lone surrogates as text, such as \udc80 */
PyObject *strings_py_text(PyObject *self, PyObject *id);

typedef struct {
    uint64_t span;   /* id, 0 = none */
    uint32_t track;  /* where it is drawn, 0 = unknown */
} Parent;
/* control_page.c: one page that all processes of a session share; private memory in a process that is in none. */
#define PAGE 65536 /* the largest page of the systems that this runs on */
#define REFUSED 256 /* processes with counts of their own; more share counts, and all of it has to fit the smallest page */
typedef struct {
    char magic[8];
    atomic_int recording;   /* what is recorded now: what span() looks at */
    atomic_uint closed;     /* the session is over */
    atomic_uint joins;      /* processes that have joined so far */
    atomic_uint threads;    /* serials given to threads: unique in the session, and so are the ids of spans */
    atomic_ullong refused[REFUSED]; /* events of threads that could have no ring, in processes that joined: by their number */
    atomic_ullong
        at_risk; /* events that are in the memory of the owner alone, at most, and that journals dropped and have not counted */
    atomic_llong begun, stopped; /* ns: when recording of the program's events was switched on last, and off last */
    atomic_uint periods; /* how often it was switched on */
    char rest[PAGE - 56 - 8 * REFUSED];
} __attribute__((aligned(PAGE))) Control;
_Static_assert(sizeof(Control) == PAGE, "nothing else is in the memory that a mapping replaces");
_Static_assert(offsetof(Control, recording) == 8 && offsetof(Control, closed) == 12, "as session/directory.py writes it");
_Static_assert(offsetof(Control, at_risk) == 2072, "as recovery/session_files.py reads it");
extern Control g_control;
void control_make(const char *directory);
int control_join(const char *session); /* -1 and errno if that is no session that goes on */
bool control_detach(unsigned joins); /* private memory from now on, of the same content; for the owner */
void control_unmap(void); /* private memory again, nothing recorded */
void control_close(void);
bool control_joined(void); /* in the session of another process */
void control_record(int what); /* in the session of another process nothing changes */
void control_wait_recording(time_t seconds);
void control_refuse(void); /* counts an event that its joined process could not keep */

/* stack.c: the open spans of a thread or task, in a mapped file, so that a killed process leaves them. */
enum {
    FRAME_DEAD = 1 /* left out of order: taken out when it comes to the top, or room is needed */,
    FRAME_ITT = 2,
    FRAME_SUSPENDED = 4, /* stands for the time in which a task does not run: nobody's parent */
    FRAME_EARLY = 8 /* entered while nothing was recorded: `ts` is when recording had stopped before */
};
typedef struct {
    int64_t ts, child; /* child: ns spent in finished child spans */
    uint64_t id;
    uint32_t name;
    uint16_t category;
    uint8_t flags, period; /* period: of an early frame, the lowest byte of `periods` when `child` was counted last */
} Frame;
typedef struct {
    _Atomic uint32_t used;
    uint32_t track;
    _Atomic uint32_t depth; /* frames in use, and DEEP for each open span that has none */
    uint32_t index;
    _Atomic uint64_t pushes; /* changes before a frame is overwritten: readers check it */
    uint64_t parent; /* parent of the outermost span (of another task or thread) */
    _Atomic uint64_t owner; /* serial of the Thread that pushes and pops here */
    _Atomic uint64_t ended_elsewhere; /* spans without a frame that another thread left */
    uint32_t parent_track, level; /* level: of the last span without a frame that may be open */
    int64_t deep_ts; /* when the latest span without a frame was entered */
    Frame frames[STACK_FRAMES];
} Stack;
enum { DEEP = STACK_FRAMES + 2 }; /* a power of 2 */
_Static_assert(sizeof(Stack) == 4096, "a stack is one page");
_Static_assert(offsetof(Stack, track) == 4 && offsetof(Stack, depth) == 8 && offsetof(Stack, index) == 12 &&
                   offsetof(Stack, pushes) == 16 && offsetof(Stack, parent) == 24 && offsetof(Stack, owner) == 32 &&
                   offsetof(Stack, frames) == 64,
               "as recovery/session_files.py reads it");
_Static_assert(offsetof(Frame, child) == 8 && offsetof(Frame, id) == 16 && offsetof(Frame, name) == 24 &&
                   offsetof(Frame, category) == 28 && offsetof(Frame, flags) == 30 && offsetof(Frame, period) == 31 &&
                   sizeof(Frame) == 32,
               "as recovery/session_files.py reads it");
typedef struct { /* an entered span; all that its record needs, whatever became of the stack */
    Stack *stack;
    uint64_t id, parent;
    int64_t ts;
    uint32_t level, name, track; /* level: 0 if it has a frame, else one that no other open span has */
    uint16_t category;
    bool early; /* has a frame with FRAME_EARLY, or would have one */
} Open;
struct Thread;
static inline uint64_t stack_owner(const Stack *stack) { return atomic_load_explicit(&stack->owner, memory_order_relaxed); }
Stack *stack_new(struct Thread *owner, uint32_t track);
void stack_free(Stack *stack);
int stack_open(const char *directory);
void stack_close(void);
int stack_move(const char *directory); /* the stacks that there are go on in a file there; nothing may be recorded */
void stack_fork(int phase);
void span_open(struct Thread *thread, Stack *stack, Open *open, uint32_t name, uint16_t category, uint8_t frame_flags);
/* Takes an early span off without a record, if nothing was recorded since it was entered; else returns false. */
bool span_skip(struct Thread *thread, const Open *open);
/* Writes the record, then pops. `inline_key` 0: no inline argument. Any thread may close what another opened. */
void span_close(struct Thread *thread, const Open *open, int64_t end, uint8_t flags, uint32_t inline_key, uint32_t inline_value,
                const char *args, uint32_t args_len);
void span_abandon(const Open *open); /* it will never be closed; any thread */
bool stack_in_use(Stack *stack); /* whether a span is open there; for the owner */
bool stack_has_parent(const Stack *stack); /* among its own spans */
Parent stack_parent(const Stack *stack); /* the innermost open span, on which hangs what is recorded now */
static inline uint64_t stack_top(const Stack *stack) { return stack_parent(stack).span; }
static inline void stack_hang(Stack *stack, Parent on) { stack->parent = on.span, stack->parent_track = on.track; }
/* Adds the open spans of stacks, which may be another process's, to some bytes; NULL and an exception without memory. */
PyObject *stacks_open_spans(PyObject *all, const Stack *stacks, size_t count, int64_t now);

/* track.c: where events are drawn; append-only. */
#define MAX_TRACKS (1 << 20) /* further ones share the last */
enum { TRACK_PROCESS = 1, TRACK_THREAD, TRACK_TASK, TRACK_STREAM, TRACK_COUNTER };
typedef struct {
    int64_t pid, tid;
    uint32_t kind, parent, name, id;
} Track;
_Static_assert(offsetof(Track, tid) == 8 && offsetof(Track, kind) == 16 && offsetof(Track, parent) == 20 &&
                   offsetof(Track, name) == 24 && offsetof(Track, id) == 28 && sizeof(Track) == 32,
               "as recovery/session_files.py reads it");
uint32_t track_new(uint32_t kind, int64_t pid, int64_t tid, uint32_t name, uint32_t parent);
/* One of this name and parent that nobody uses any more, else a new one; not `except`. Its `tid` is no system's number.
 * Past some thousand of tasks, one named `task` for any name. */
uint32_t track_lease(uint32_t kind, uint32_t name, uint32_t parent, uint32_t except);
void track_release(uint32_t id);
const Track *track_get(uint32_t id); /* any thread; never NULL */
uint32_t track_process(void); /* of this process */
void track_name_process(void); /* as the program calls this process, unless a name was given; needs the GIL */
int track_open(const char *directory);
void track_close(void);
void track_fork(int phase);

/* ring.c: one single-producer ring of slots per thread, in a mapped file. */
typedef struct Ring Ring;
typedef struct Thread {
    Ring *ring;
    Ring *marks; /* of step marks only; NULL until they need one */
    Stack *stack; /* of the thread itself */
    Stack *context_stack; /* of the context that recorded last (context.c) */
    uint64_t state_id, context_version; /* when that is valid */
    uint64_t under; /* parent that this thread was given by hand, 0 = none */
    uint64_t serial; /* of threads */
    uint64_t next_id; /* of spans: unique in the process */
    void *itt; /* itt.c: scratch of this thread, freed by itt_thread_end */
} Thread;
enum {
    RECORD_EVENTS = 1, /* of the program: spans, counters, ... */
    RECORD_OPERATORS = 2, /* of frameworks */
    RECORD_OPEN = 4 /* nothing; but spans go onto their stacks, so that a window has those that it begins in */
};
static inline bool recording(int what) { return atomic_load_explicit(&g_control.recording, memory_order_relaxed) & what; }
void thread_forget_context(void); /* it is looked up again */

/* wants.c: which profilers want which events recorded. Events that were asked for and cost too much now are left out. */
extern atomic_int g_omitted;
extern uint64_t g_omitted_events; /* changed with the GIL held */
static inline uint64_t omitted(int what) {
    return (uint64_t)((atomic_load_explicit(&g_omitted, memory_order_relaxed) & what) != 0);
}
void wants_now(uint64_t who, int now); /* needs the GIL; the profiler is known by Python's `want` */
void wants_after_fork(void);

Thread *thread_current(void); /* makes ring and stack; NULL without a session */
Thread *thread_current_object(void); /* the same, named as Python names the thread; needs the GIL */
/* False when the ring was full (counted). Blocks only where the user asked for it, up to a limit, and lets go of the
 * GIL then if it is held: so what other threads may change is read before. */
bool ring_write(Thread *thread, const Event *event, const char *args, uint32_t args_len);
void ring_refuse(void); /* counts an event of a thread that has no ring */

/* files.c */
int session_file(const char *directory, const char *name, int flags); /* for this user alone; -1 and errno */
void session_unlink(const char *directory, const char *name);
/* Appends an entry or, counted, nothing: half of one would make the ones behind it unreadable. */
void session_append(int *file, const void *entry, size_t size);
bool file_reserve(int fd, uint64_t from, uint64_t bytes); /* false when the file system is full */

int ring_init(void);

/* context.c: which stack a span goes to: that of the running task, or of the thread. */
Stack *stack_of_object(Thread *thread); /* needs the GIL; NULL with what a signal handler raised meanwhile */
Stack *stack_without_gil(Thread *thread); /* the task's if its context recorded last, else the thread's */
int context_init(void);
void context_after_fork(void);
typedef struct ContextScope ContextScope;
Parent context_parent(void); /* of what would be recorded now; needs the GIL */
/* The stack of a coroutine's scope, which `thread` goes on with; NULL if it has none in this process. */
Stack *scope_stack(ContextScope *scope, Thread *thread);
void scope_end(ContextScope *scope); /* the task has ended: its stack and track may be used again */

/* coroutine.c: the coroutine of a task, watched. */
typedef struct {
    PyObject_HEAD
    PyObject *inner, *weak_references;
    ContextScope *scope; /* since it has recorded */
    PyObject *context; /* the first in which it did: there, the variable holds the scope */
    Parent parent; /* of its outermost spans: what was open where the task was made; if `placed` */
    Open suspended; /* `id` 0: it runs, has nothing open, or nothing records */
    Open run; /* of the whole task, where tasks are recorded without annotations; `id` 0: not begun */
    uint32_t steps; /* under way; more than one is an error of who drives it */
    bool placed;
} Coroutine;
extern PyTypeObject CoroutineType;
Coroutine *coroutine_running(void); /* whose step runs on this thread, NULL = none; borrowed */
int coroutine_init(void);

/* span.c, step.c */
extern PyTypeObject SpanType, StepCounterType, AggregatesType, SpanIntervalsType;
extern PyTypeObject AttachedType; /* attach.c: rings of other processes */
void step_after_fork(void);

/* Counts of shortened values (module.c: counts()). */
typedef struct {
    atomic_ullong names_cut, strings_full, categories_full, values_cut, arguments_cut, arguments_opaque,
        counter_values_that_are_no_number, deep_spans, spans_abandoned, rings_failed, lookups_failed;
} Counts;
extern Counts g_counts;
static inline void count_one(atomic_ullong *count) { atomic_fetch_add_explicit(count, 1, memory_order_relaxed); }

/* arguments.c */
typedef struct {
    uint32_t len;
    char bytes[MAX_ARGS_BYTES];
} ArgBuffer;
void arg_put(ArgBuffer *buffer, uint32_t key, char type, const void *value, size_t len);
void arg_put_text(ArgBuffer *buffer, uint32_t key, const char *utf8, size_t len);
/* A value that cannot be stored is counted. It leaves an exception only if a signal handler of the program has raised meanwhile. */
void arg_put_object(ArgBuffer *buffer, uint32_t key, PyObject *value);

ssize_t read_small(const char *path, char *text, size_t room); /* thread_times.c: a file's begin, zero terminated; -1: none */

/* signal_mask.c: the signals that threads block. */
void mask_asynchronous(sigset_t *set); /* what every thread of ours blocks */
void mask_seen(void); /* notes the mask of the main thread, if that calls */

/* signals.c */
void signals_before_fork(void);
void signals_after_fork_parent(void);
void signals_after_fork(void); /* in the child */

/* event_columns.c, perfetto.c, itt.c: see there. */
void columns_fork(int phase);
extern PyTypeObject PerfettoEncoderType;
#define ITT_UNRECORDED "\001stepscope" /* a task of this name shows that calls arrive, and is not recorded */
uint64_t itt_omitted(void);
void itt_thread_end(Thread *thread);

#endif
