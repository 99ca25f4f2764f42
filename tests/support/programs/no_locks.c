/* A shared file system without locks, as some network mounts are: below the directory SHARED, flock and fcntl locks
   fail with the error number LOCK_ERROR. Everything else is the real one. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int on_shared_mount(int descriptor) {
    char link[64], path[4096];
    const char *shared = getenv("SHARED");
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || !shared) return 0;
    path[length] = 0;
    return strncmp(path, shared, strlen(shared)) == 0;
}

static int refusal(void) {
    const char *number = getenv("LOCK_ERROR");
    return number ? atoi(number) : ENOSYS;
}

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

static int fcntl_or_refuse(const char *name, int descriptor, int command, void *argument) {
    if (is_lock(command) && on_shared_mount(descriptor)) return errno = refusal(), -1;
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, name))(descriptor, command, argument);
}

int flock(int descriptor, int operation) {
    if (on_shared_mount(descriptor)) return errno = refusal(), -1;
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}

int fcntl(int descriptor, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return fcntl_or_refuse("fcntl", descriptor, command, argument);
}

int fcntl64(int descriptor, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return fcntl_or_refuse("fcntl64", descriptor, command, argument);
}
