/* Records what a process writes to the files of one directory, and when it syncs them.
 *
 * Loaded with LD_PRELOAD. OUTLAST_TRACE_OF names the directory, OUTLAST_TRACE_TO the file that the records are appended
 * to. Without the two, or for any other file, a call goes through as if this library were not there.
 *
 * A record is written after its call returned, under one lock with it. So the records are in the order of the calls, and
 * a sync covers all that stands before it. A process that is killed in between has one record too few, never one too
 * many: what is missing is a write or a sync that nobody was told of. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* As crates/outlast-testkit/src/bin/torture/disk.rs reads it, in the machine's byte order. */
struct record {
    uint64_t at;     /* nanoseconds since 1970 */
    uint64_t offset; /* of a write; the length that a truncation leaves */
    uint32_t bytes;  /* of a write; they follow the path */
    uint16_t path;   /* the length of the path, which follows */
    uint8_t kind;    /* 'w'rite, 't'runcate, 's'ync, 'u'nlink, 'r'ename (the new path is its bytes) */
    uint8_t pad;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *of;
static size_t of_length;
static int to = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("OUTLAST_TRACE_TO");
    of = getenv("OUTLAST_TRACE_OF");
    if (of == NULL || path == NULL) return;
    of_length = strlen(of);
    to = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (to < 0) {
        perror("the trace cannot be opened");
        _exit(2);
    }
}

static int traced(const char *path)
{
    return to >= 0 && strncmp(path, of, of_length) == 0 && (path[of_length] == '/' || path[of_length] == 0);
}

/* The path of an open file, if it is one that is traced. */
static int named(int fd, char path[PATH_MAX])
{
    char link[64];
    if (to < 0 || fd == to) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return traced(path);
}

static void record(char kind, const char *path, uint64_t offset, const struct iovec *parts, int count, size_t bytes)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct record head = {
        .at = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
        .offset = offset,
        .bytes = (uint32_t)bytes,
        .path = (uint16_t)strlen(path),
        .kind = (uint8_t)kind,
    };
    struct iovec all[18] = {{&head, sizeof head}, {(void *)path, head.path}};
    int last = 2;
    for (int part = 0; part < count && bytes > 0 && last < 18; part++) {
        size_t length = parts[part].iov_len < bytes ? parts[part].iov_len : bytes;
        all[last++] = (struct iovec){parts[part].iov_base, length};
        bytes -= length;
    }
    /* Past the functions below. A record that is cut off says that the process died while it wrote it. */
    if (bytes > 0 || syscall(SYS_writev, to, all, last) < 0) _exit(3);
}

/* Makes the call, and records it where it is of a traced file and did something. */
#define WRITING(fd, place, parts, count, call)                        \
    char path[PATH_MAX];                                              \
    if (!named(fd, path)) return call;                                \
    pthread_mutex_lock(&lock);                                        \
    off_t at = (place) < 0 ? lseek(fd, 0, SEEK_CUR) : (off_t)(place); \
    ssize_t done = call;                                              \
    if (done > 0) record('w', path, (uint64_t)at, parts, count, (size_t)done); \
    pthread_mutex_unlock(&lock);                                      \
    return done

#define DOING(kind, is_traced, path, offset, parts, count, bytes, call) \
    if (!(is_traced)) return call;                                    \
    pthread_mutex_lock(&lock);                                        \
    int done = call;                                                  \
    if (done == 0) record(kind, path, offset, parts, count, bytes);   \
    pthread_mutex_unlock(&lock);                                      \
    return done

ssize_t write(int fd, const void *from, size_t size)
{
    struct iovec part = {(void *)from, size};
    WRITING(fd, -1, &part, 1, REAL(write)(fd, from, size));
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    WRITING(fd, -1, parts, count, REAL(writev)(fd, parts, count));
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t offset)
{
    struct iovec part = {(void *)from, size};
    WRITING(fd, offset, &part, 1, REAL(pwrite)(fd, from, size, offset));
}

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t offset)
{
    struct iovec part = {(void *)from, size};
    WRITING(fd, offset, &part, 1, REAL(pwrite64)(fd, from, size, offset));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    WRITING(fd, offset, parts, count, REAL(pwritev)(fd, parts, count, offset));
}

int ftruncate(int fd, off_t length)
{
    char path[PATH_MAX];
    DOING('t', named(fd, path), path, (uint64_t)length, NULL, 0, 0, REAL(ftruncate)(fd, length));
}

int ftruncate64(int fd, off64_t length)
{
    char path[PATH_MAX];
    DOING('t', named(fd, path), path, (uint64_t)length, NULL, 0, 0, REAL(ftruncate64)(fd, length));
}

int fsync(int fd)
{
    char path[PATH_MAX];
    DOING('s', named(fd, path), path, 0, NULL, 0, 0, REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    char path[PATH_MAX];
    DOING('s', named(fd, path), path, 0, NULL, 0, 0, REAL(fdatasync)(fd));
}

int unlink(const char *path)
{
    DOING('u', traced(path), path, 0, NULL, 0, 0, REAL(unlink)(path));
}

int rename(const char *from, const char *into)
{
    struct iovec part = {(void *)into, strlen(into)};
    DOING('r', traced(from), from, 0, &part, 1, part.iov_len, REAL(rename)(from, into));
}
