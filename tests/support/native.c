/* Calls the core as torch calls a collector of ITT, from threads that do not hold the GIL (tests/support/native.py).
 * Layouts: github.com/intel/ittapi, ittnotify_config.h. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

typedef struct { const char *name; void **function, *initial, *null; int group; } Entry;
typedef struct { uint64_t parts[3]; } Id;
static struct {
    unsigned char magic[8];
    unsigned long major, minor, build;
    volatile long state[3];
    pthread_mutex_t mutex;
    void *library[3];
    Entry *functions;
    void *lists[8];
} global = {{0xed, 0xab, 0xab, 0xec, 0x0d, 0xee, 0xda, 0x30}, 3};

static void *(*create)(const char *), *(*handle)(const char *), *domain;
static void (*begin)(void *, Id, Id, void *), (*end)(void *);
static Entry functions[] = {{"__itt_domain_create", (void **)&create, 0, 0, 0},
                            {"__itt_string_handle_create", (void **)&handle, 0, 0, 0},
                            {"__itt_task_begin", (void **)&begin, 0, 0, 0},
                            {"__itt_task_end", (void **)&end, 0, 0, 0},
                            {0, 0, 0, 0, 0}};

void start(void (*initialise)(void *, int)) {
    global.functions = functions;
    initialise(&global, 0);
    domain = create("PyTorch");
}

static void *work(void *count) {
    Id none = {{0}};
    for (long i = 0; i < *(long *)count; i++) {
        begin(domain, none, none, handle("aten::add"));
        end(domain);
    }
    return NULL;
}

/* Each thread records `count` operators, all at once; 0 threads: the caller does. */
int run(int threads, long count) {
    pthread_t ids[64];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, &count)) return -1;
    if (!threads) work(&count);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
