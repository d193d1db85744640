// Stands in for a training job: training_job loader|compute [FILE].
//
// Two threads load batches, which costs CPU time; the loop takes one for each step, waits as long as a GPU would
// compute, and prints "step=N". A loader-bound job loads for 8 ms of CPU time and computes nothing; a compute-bound one
// loads for 0.2 ms and computes for 10 ms. With a file, each batch also reads 64 pages of it, at random.

#include <fcntl.h>
#include <poll.h>
#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 2;
constexpr std::size_t kReady = 4;
constexpr int kPages = 64;

double ThreadCpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ready = 0;
};

void Load(Queue& queue, double cpu_seconds, int file, unsigned seed) {
  std::mt19937_64 random(seed);
  const auto pages = file < 0 ? 0 : static_cast<std::uint64_t>(::lseek(file, 0, SEEK_END)) / 4096;
  for (;;) {
    const double begin = ThreadCpuSeconds();
    for (int i = 0; pages > 0 && i < kPages; ++i) {
      std::array<char, 4096> page{};
      if (::pread(file, page.data(), page.size(), static_cast<off_t>(random() % pages * 4096)) < 0) return;
    }
    while (ThreadCpuSeconds() - begin < cpu_seconds) {
    }
    std::unique_lock lock(queue.mutex);
    queue.changed.wait(lock, [&] { return queue.ready < kReady; });
    ++queue.ready;
    queue.changed.notify_all();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const bool loader = std::strcmp(argv[1], "loader") == 0;
  const int file = argc > 2 ? ::open(argv[2], O_RDONLY) : -1;
  if (argc > 2 && file < 0) return 2;
  Queue queue;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back(Load, std::ref(queue), loader ? 0.008 : 0.0002, file, i);
  }
  for (int step = 1;; ++step) {
    {
      std::unique_lock lock(queue.mutex);
      queue.changed.wait(lock, [&] { return queue.ready > 0; });
      --queue.ready;
      queue.changed.notify_all();
    }
    if (!loader) ::poll(nullptr, 0, 10);
    std::printf("step=%d loss=1.0\n", step);
    std::fflush(stdout);
  }
}
