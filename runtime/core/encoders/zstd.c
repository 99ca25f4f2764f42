#include "encoders/zstd.h"
#include <dlfcn.h>
#include <pthread.h>

#define LEVEL 1 /* higher ones save 0 to 4 % of the bytes and cost 2 to 40 ns an event */

typedef struct CompressionContext CompressionContext;
static struct {
    size_t (*bound)(size_t);
    CompressionContext *(*create)(void);
    size_t (*compress)(CompressionContext *, void *, size_t, const void *, size_t, int);
    size_t (*decompress)(void *, size_t, const void *, size_t);
    unsigned (*is_error)(size_t);
} library;
static CompressionContext *context;
static bool loaded;

static void load(void) {
    void *handle = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    struct {
        const char *name;
        void *to;
    } wanted[] = {{"ZSTD_compressBound", &library.bound},
                  {"ZSTD_createCCtx", &library.create},
                  {"ZSTD_compressCCtx", &library.compress},
                  {"ZSTD_decompress", &library.decompress},
                  {"ZSTD_isError", &library.is_error}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*(void **)wanted[i].to = dlsym(handle, wanted[i].name))) return;
    context = library.create();
    loaded = context != NULL;
}

bool zstd_available(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return loaded;
}

size_t zstd_bound(size_t len) { return zstd_available() ? library.bound(len) : 0; }

size_t zstd_compress(void *to, size_t room, const void *from, size_t len) {
    if (!zstd_available()) return 0;
    size_t size = library.compress(context, to, room, from, len, LEVEL);
    return library.is_error(size) ? 0 : size;
}

bool zstd_decompress(void *to, size_t len, const void *from, size_t stored) {
    if (!zstd_available()) return false;
    size_t size = library.decompress(to, len, from, stored);
    return !library.is_error(size) && size == len;
}
