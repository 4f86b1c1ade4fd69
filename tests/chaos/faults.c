/* Counts the calls that change files below one folder, and fails one of them or kills the process there.
 *
 * Preloaded (LD_PRELOAD) into the process that tests/chaos/forks.py starts; that sets it up through ctypes. A call has
 * a key, "name path", with the path below the folder and without the process number of temporary files, and is aimed
 * at by its key and how often the key came before: threads may change the order of calls, but not that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum how { NOTHING, FAIL, FULL, KILL, TORN };
enum { LONGEST = 512, NAME = 32, MOST = 8192 }; /* of a key, of its first word, of all calls */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX], keys[MOST][LONGEST], aim[LONGEST];
static long long sizes[MOST]; /* bytes of the writes that were let through */
static int count, aim_occurrence, aim_how, hit, full;

void faults_watch(const char *path)
{
    snprintf(folder, sizeof folder, "%s", path);
    count = hit = full = 0;
    aim_how = NOTHING;
}

void faults_aim(const char *key, int occurrence, int how)
{
    snprintf(aim, sizeof aim, "%s", key);
    aim_occurrence = occurrence;
    aim_how = how;
}

int faults_count(void) { return count; }
int faults_hit(void) { return hit; }
const char *faults_key(int number) { return keys[number]; }
long long faults_size(int number) { return sizes[number]; }

static void *libc_call(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

#define LIBC(result, name, ...) \
    static result (*name##_)(__VA_ARGS__); \
    if (!name##_) *(void **)&name##_ = libc_call(#name)

/* The path below the folder, or NULL; ".summary.json.4711.partial" becomes ".summary.json.partial". `kept` holds
 * LONGEST - NAME characters. */
static const char *below(const char *path, char *kept)
{
    size_t length = strlen(folder);
    if (!length || strncmp(path, folder, length) || (path[length] != '/' && path[length])) return NULL;
    snprintf(kept, LONGEST - NAME, "%s", path[length] ? path + length + 1 : ".");
    if (strstr(kept, " (deleted)")) strcpy(kept, "unnamed");
    char *end = strstr(kept, ".partial");
    if (end && !end[8]) {
        char *digits = end;
        while (digits > kept && digits[-1] >= '0' && digits[-1] <= '9') digits--;
        if (digits > kept && digits[-1] == '.') memmove(digits - 1, end, strlen(end) + 1);
    }
    return kept;
}

static void absolute(int at, const char *path, char *whole)
{
    char link[64], base[PATH_MAX] = "";
    if (path[0] != '/') {
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, base, sizeof base - 2);
        base[length > 0 ? length : 0] = 0;
        strcat(base, "/");
    }
    snprintf(whole, 2 * PATH_MAX, "%s%s", base, path);
}

static int is_aimed(const char *key)
{
    int before = 0;
    for (int i = 0; i < count; i++) before += !strcmp(keys[i], key);
    return aim_how != NOTHING && !hit && before == aim_occurrence && !strcmp(key, aim);
}

/* Note a call; what is to become of it. `number` is its place in the notes, -1 where it is none of ours. */
static enum how meet(const char *name, const char *path, int takes_space, int *number)
{
    char kept[LONGEST - NAME], key[LONGEST];
    *number = -1;
    if (!folder[0] || !below(path, kept)) return NOTHING;
    snprintf(key, sizeof key, "%.*s %s", NAME - 2, name, kept);
    pthread_mutex_lock(&turn);
    enum how found = NOTHING;
    if (is_aimed(key)) {
        hit = 1;
        found = aim_how;
        full = aim_how == FULL;
    } else if (full && takes_space) {
        found = FAIL;
    }
    if (count < MOST) {
        *number = count;
        sizes[count] = 0;
        strcpy(keys[count++], key);
    }
    if (found != KILL) pthread_mutex_unlock(&turn); /* nobody overtakes the dead */
    if (found == KILL) kill(getpid(), SIGKILL);
    return found;
}

static enum how meet_file(const char *name, int file, int takes_space, int *number)
{
    char link[64], path[PATH_MAX];
    *number = -1;
    if (!folder[0]) return NOTHING;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return NOTHING;
    path[length] = 0;
    return meet(name, path, takes_space, number);
}

static enum how meet_path(const char *name, int at, const char *path, int takes_space)
{
    char whole[2 * PATH_MAX];
    int number;
    if (!folder[0]) return NOTHING;
    absolute(at, path, whole);
    return meet(name, whole, takes_space, &number);
}

/* A call that fails or happens; TORN kills right after it. */
#define ANSWER(met, error, call) \
    do { \
        enum how found = (met); \
        if (found == FAIL || found == FULL) { errno = full ? ENOSPC : (error); return -1; } \
        int result = (call); \
        if (found == TORN) kill(getpid(), SIGKILL); \
        return result; \
    } while (0)

/* TORN and FULL write the first half. */
static ssize_t written(enum how how, int number, size_t size, ssize_t (*some)(void *, size_t), void *what)
{
    if (how == FAIL || (how == FULL && size < 2)) { errno = ENOSPC; return -1; }
    ssize_t done = some(what, how == NOTHING ? size : size / 2);
    if (how == TORN) kill(getpid(), SIGKILL);
    if (number >= 0 && done > 0) sizes[number] = done;
    return done;
}

struct bytes { int file; const void *from; off_t at; };

static ssize_t write_some(void *what, size_t size)
{
    LIBC(ssize_t, write, int, const void *, size_t);
    struct bytes *it = what;
    return write_(it->file, it->from, size);
}

static ssize_t pwrite_some(void *what, size_t size)
{
    LIBC(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    struct bytes *it = what;
    return pwrite64_(it->file, it->from, size, it->at);
}

ssize_t write(int file, const void *from, size_t size)
{
    struct bytes it = {file, from, 0};
    int number;
    enum how how = meet_file("write", file, 1, &number);
    return written(how, number, size, write_some, &it);
}

ssize_t pwrite64(int file, const void *from, size_t size, off64_t at)
{
    struct bytes it = {file, from, at};
    int number;
    enum how how = meet_file("write", file, 1, &number);
    return written(how, number, size, pwrite_some, &it);
}

ssize_t pwrite(int file, const void *from, size_t size, off_t at) { return pwrite64(file, from, size, at); }

ssize_t writev(int file, const struct iovec *parts, int n)
{
    LIBC(ssize_t, writev, int, const struct iovec *, int);
    int number;
    enum how how = meet_file("write", file, 1, &number);
    if (how == FAIL || how == FULL) { errno = ENOSPC; return -1; }
    ssize_t done = writev_(file, parts, how == TORN ? (n + 1) / 2 : n);
    if (how == TORN) kill(getpid(), SIGKILL);
    if (number >= 0 && done > 0) sizes[number] = done;
    return done;
}

static int open_any(int at, const char *path, int flags, mode_t mode)
{
    LIBC(int, openat64, int, const char *, int, ...);
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC))) return openat64_(at, path, flags, mode);
    /* A scratch file without a name is one of the folder's, not the folder. */
    const char *name = (flags & O_TMPFILE) == O_TMPFILE ? "open-unnamed" : "open";
    ANSWER(meet_path(name, at, path, flags & O_CREAT), ENOSPC, openat64_(at, path, flags, mode));
}

#define MODE(flags) \
    mode_t mode = 0; \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags); return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags); return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags); return open_any(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int fsync(int file)
{
    LIBC(int, fsync, int);
    int number;
    ANSWER(meet_file("fsync", file, 1, &number), EIO, fsync_(file));
}

int fdatasync(int file)
{
    LIBC(int, fdatasync, int);
    int number;
    ANSWER(meet_file("fsync", file, 1, &number), EIO, fdatasync_(file));
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    LIBC(int, renameat2, int, const char *, int, const char *, unsigned);
    ANSWER(meet_path("rename", to_at, to, 1), EIO, renameat2_(from_at, from, to_at, to, flags));
}

int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *path, int flags)
{
    LIBC(int, unlinkat, int, const char *, int);
    ANSWER(meet_path(flags & AT_REMOVEDIR ? "rmdir" : "unlink", at, path, 0), EIO, unlinkat_(at, path, flags));
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char *path, mode_t mode)
{
    LIBC(int, mkdirat, int, const char *, mode_t);
    ANSWER(meet_path("mkdir", at, path, 1), ENOSPC, mkdirat_(at, path, mode));
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int ftruncate64(int file, off64_t size)
{
    LIBC(int, ftruncate64, int, off64_t);
    int number;
    ANSWER(meet_file("truncate", file, 1, &number), EIO, ftruncate64_(file, size));
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int posix_fallocate64(int file, off64_t start, off64_t size)
{
    LIBC(int, posix_fallocate64, int, off64_t, off64_t);
    int number;
    enum how how = meet_file("allocate", file, 1, &number);
    if (how == FAIL || how == FULL) return ENOSPC;
    int result = posix_fallocate64_(file, start, size);
    if (how == TORN) kill(getpid(), SIGKILL);
    return result;
}

int posix_fallocate(int file, off_t start, off_t size) { return posix_fallocate64(file, start, size); }
