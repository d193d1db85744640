// LD_PRELOAD, for scripts/demo memory: what the process writes to a disk takes as long as $SLOW_DISK says, in bytes a
// second, over all its threads. tmpfs stays as it is. io_uring is forbidden, since what it does is no call.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static double rate;

__attribute__((constructor)) static void Begin(void) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
  const char* const given = getenv("SLOW_DISK");
  rate = given != NULL ? atof(given) : 0;
  if (rate <= 0) return;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) abort();
}

// The disk is busy with what came before.
static void Wait(size_t bytes) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static double free_at;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const double begun = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  pthread_mutex_lock(&mutex);
  free_at = (free_at > begun ? free_at : begun) + (double)bytes / rate;
  const double end = free_at;
  pthread_mutex_unlock(&mutex);
  const struct timespec until = {.tv_sec = (time_t)end, .tv_nsec = (long)(1e9 * (end - (double)(time_t)end))};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
  }
}

ssize_t pwrite64(int fd, const void* memory, size_t bytes, off64_t offset) {
  const ssize_t written = syscall(SYS_pwrite64, fd, memory, bytes, offset);
  const int error = errno;
  struct statfs found;
  if (rate > 0 && written > 0 && fstatfs(fd, &found) == 0 && found.f_type != TMPFS_MAGIC) Wait((size_t)written);
  errno = error;
  return written;
}

ssize_t pwrite(int fd, const void* memory, size_t bytes, off_t offset) { return pwrite64(fd, memory, bytes, offset); }
