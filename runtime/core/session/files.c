/* The files of a session's directory. */
#include "core.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int session_file(const char *directory, const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void session_unlink(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

void session_append(int *file, const void *entry, size_t size) {
    ssize_t written = *file >= 0 ? write(*file, entry, size) : (ssize_t)size;
    if (written == (ssize_t)size) return;
    count_one(&g_counts.strings_full);
    if (written > 0 && ftruncate(*file, lseek(*file, 0, SEEK_END) - written) < 0) close(*file), *file = -1;
}

bool file_reserve(int fd, uint64_t from, uint64_t bytes) {
    int failed;
    do failed = fallocate(fd, 0, (off_t)from, (off_t)bytes);
    while (failed && errno == EINTR);
    return !failed || errno == EOPNOTSUPP;
}
