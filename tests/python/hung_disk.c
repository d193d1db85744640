// LD_PRELOAD: holds chosen calls on paths that contain chosen text, until they are let on. hung_disk.py drives it.
//
// The test and all its processes map the file $CAIRN_GATE. Held calls wait for a futex in it, and can be killed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// The order of hung_disk.CALLS.
enum { kCreate, kOpen, kRead, kWrite, kFsync, kAllocate, kRename, kUnlink, kMkdir, kKinds };

struct Gate {
  uint32_t held;            // Bits of the kinds that are held.
  uint32_t arrived;         // Counts calls that came to wait.
  uint32_t waiting[kKinds];  // How many calls of each kind wait.
  char text[PATH_MAX];      // Only paths with this in them.
};

static struct Gate* gate;

static long Futex(uint32_t* word, int op, uint32_t value, const struct timespec* timeout) {
  return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

// Of the test, which loads this file too.
void GateMap(const char* file) {
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
  void* map = mmap(NULL, sizeof(struct Gate), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || map == MAP_FAILED) {
    perror(file);
    abort();
  }
  close(fd);
  gate = map;
}

unsigned GateBytes(void) { return sizeof(struct Gate); }

void GateHold(unsigned kinds, const char* text) {
  strncpy(gate->text, text, sizeof gate->text - 1);
  memset(gate->waiting, 0, sizeof gate->waiting);
  __atomic_store_n(&gate->held, kinds, __ATOMIC_SEQ_CST);
}

void GateOpen(void) {
  __atomic_store_n(&gate->held, 0, __ATOMIC_SEQ_CST);
  Futex(&gate->held, FUTEX_WAKE, INT_MAX, NULL);
}

unsigned GateWaiting(unsigned kinds) {
  unsigned sum = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    if (kinds >> kind & 1) sum += __atomic_load_n(&gate->waiting[kind], __ATOMIC_SEQ_CST);
  }
  return sum;
}

// Whether so many calls of these kinds wait, within the time.
int GateAwait(unsigned kinds, unsigned count, unsigned seconds) {
  struct timespec now, end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += seconds;
  for (;;) {
    const uint32_t arrived = __atomic_load_n(&gate->arrived, __ATOMIC_SEQ_CST);
    if (GateWaiting(kinds) >= count) return 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec > end.tv_sec) return 0;
    const struct timespec second = {.tv_sec = 1};
    Futex(&gate->arrived, FUTEX_WAIT, arrived, &second);
  }
}

__attribute__((constructor)) static void Map(void) {
  if (getenv("CAIRN_GATE") != NULL) GateMap(getenv("CAIRN_GATE"));
}

static uint32_t Held(int kind) {
  return gate == NULL ? 0 : __atomic_load_n(&gate->held, __ATOMIC_SEQ_CST) & 1U << kind;
}

// The path, or the descriptor's if there is none, has the text.
static int Concerns(int fd, const char* path) {
  char link[64], whole[2 * PATH_MAX];
  size_t used = 0;
  if (path == NULL || path[0] != '/') {
    snprintf(link, sizeof link, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
    const ssize_t got = readlink(link, whole, PATH_MAX);
    used = got > 0 ? (size_t)got : 0;
  }
  snprintf(whole + used, sizeof whole - used, "%s%s", used && path ? "/" : "", path ? path : "");
  return strstr(whole, gate->text) != NULL;
}

static void Wait(int kind) {
  const int error = errno;
  __atomic_add_fetch(&gate->waiting[kind], 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&gate->arrived, 1, __ATOMIC_SEQ_CST);
  Futex(&gate->arrived, FUTEX_WAKE, INT_MAX, NULL);
  while (Held(kind)) Futex(&gate->held, FUTEX_WAIT, __atomic_load_n(&gate->held, __ATOMIC_SEQ_CST) | 1U << kind, NULL);
  __atomic_sub_fetch(&gate->waiting[kind], 1, __ATOMIC_SEQ_CST);
  errno = error;
}

static void Pass(int kind, int fd, const char* path) {
  if (Held(kind) && Concerns(fd, path)) Wait(kind);
}

#define REAL(name)                                \
  static __typeof__(name)* real;                  \
  if (real == NULL) real = dlsym(RTLD_NEXT, #name)
#define MODE(flags)                                      \
  mode_t mode = 0;                                       \
  if ((flags) & (O_CREAT | __O_TMPFILE)) {               \
    va_list rest;                                        \
    va_start(rest, flags);                               \
    mode = (mode_t)va_arg(rest, int);                    \
    va_end(rest);                                        \
  }

#define OPENAT(name)                                                 \
  int name(int fd, const char* path, int flags, ...) {               \
    REAL(name);                                                      \
    MODE(flags)                                                      \
    Pass(flags & O_CREAT ? kCreate : kOpen, fd, path);               \
    return real(fd, path, flags, mode);                              \
  }
OPENAT(openat)
OPENAT(openat64)

#define OPEN(name)                                                   \
  int name(const char* path, int flags, ...) {                       \
    REAL(name);                                                      \
    MODE(flags)                                                      \
    Pass(flags & O_CREAT ? kCreate : kOpen, AT_FDCWD, path);         \
    return real(path, flags, mode);                                  \
  }
OPEN(open)
OPEN(open64)

#define OF_FD(type, name, kind, given, passed) \
  type name given {                            \
    REAL(name);                                \
    Pass(kind, fd, NULL);                      \
    return real passed;                        \
  }
OF_FD(ssize_t, pread, kRead, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
OF_FD(ssize_t, pread64, kRead, (int fd, void* to, size_t n, off64_t at), (fd, to, n, at))
OF_FD(ssize_t, write, kWrite, (int fd, const void* from, size_t n), (fd, from, n))
OF_FD(ssize_t, pwrite, kWrite, (int fd, const void* from, size_t n, off_t at), (fd, from, n, at))
OF_FD(ssize_t, pwrite64, kWrite, (int fd, const void* from, size_t n, off64_t at), (fd, from, n, at))
OF_FD(ssize_t, pwritev2, kWrite, (int fd, const struct iovec* v, int n, off_t at, int how), (fd, v, n, at, how))
OF_FD(int, fsync, kFsync, (int fd), (fd))
OF_FD(int, fdatasync, kFsync, (int fd), (fd))
OF_FD(int, sync_file_range, kFsync, (int fd, off64_t at, off64_t n, unsigned how), (fd, at, n, how))
OF_FD(int, fallocate, kAllocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
OF_FD(int, fallocate64, kAllocate, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n))
OF_FD(int, ftruncate, kAllocate, (int fd, off_t n), (fd, n))
OF_FD(int, ftruncate64, kAllocate, (int fd, off64_t n), (fd, n))

#define OF_PATH(name, kind, given, passed, directory, path) \
  int name given {                                          \
    REAL(name);                                             \
    Pass(kind, directory, path);                            \
    return real passed;                                     \
  }
OF_PATH(unlink, kUnlink, (const char* path), (path), AT_FDCWD, path)
OF_PATH(rmdir, kUnlink, (const char* path), (path), AT_FDCWD, path)
OF_PATH(unlinkat, kUnlink, (int fd, const char* path, int flags), (fd, path, flags), fd, path)
OF_PATH(mkdir, kMkdir, (const char* path, mode_t mode), (path, mode), AT_FDCWD, path)
OF_PATH(mkdirat, kMkdir, (int fd, const char* path, mode_t mode), (fd, path, mode), fd, path)

static void PassRename(int from_fd, const char* from, int to_fd, const char* to) {
  if (Held(kRename) && (Concerns(from_fd, from) || Concerns(to_fd, to))) Wait(kRename);
}

int rename(const char* from, const char* to) {
  REAL(rename);
  PassRename(AT_FDCWD, from, AT_FDCWD, to);
  return real(from, to);
}
int renameat(int from_fd, const char* from, int to_fd, const char* to) {
  REAL(renameat);
  PassRename(from_fd, from, to_fd, to);
  return real(from_fd, from, to_fd, to);
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  REAL(renameat2);
  PassRename(from_fd, from, to_fd, to);
  return real(from_fd, from, to_fd, to, flags);
}
