#include "bench/pccheck/writer_process.h"

#include <sys/wait.h>

#include <utility>

#include "base/status_macros.h"
#include "bench/emulation/child_process.h"

namespace cairn::bench {

Result<std::unique_ptr<WriterProcess>> WriterProcess::Start(const std::string& slots, const SharedMemory& memory) {
  std::unique_ptr<WriterProcess> writer(new WriterProcess);
  const int channels = 2 + memory.settings().in_flight;
  {
    ChildFiles files;
    files.Log("/dev/null");
    CAIRN_RETURN_IF_ERROR(files.Give(memory.file(), kWriterMemoryFd));
    for (int i = 0; i < channels; ++i) {
      CAIRN_ASSIGN_OR_RETURN(auto ends, PcCheckChannel::Make());
      CAIRN_RETURN_IF_ERROR(files.Give(ends.second.socket(), kWriterControlFd + i));
      writer->channels_.push_back(std::move(ends.first));
    }
    files.CloseFrom(kWriterControlFd + channels);
    CAIRN_ASSIGN_OR_RETURN(writer->pid_,
                           Spawn({ProgramBesideThis("bench_pccheck_writer"), slots}, files, Session::kShared));
  }
  const Result<PcCheckMessage> said = writer->control().Receive();
  if (!said.ok()) return writer->Death();
  CAIRN_RETURN_IF_ERROR(said->status());
  return writer;
}

WriterProcess::~WriterProcess() {
  Shut();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

void WriterProcess::Shut() {
  for (PcCheckChannel& channel : channels_) channel.Shut();
}

Status WriterProcess::Death() const {
  siginfo_t end{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT);
  return Error(StatusCode::kFailedPrecondition, "pccheck's writer process has ended, by {} {}",
               end.si_code == CLD_EXITED ? "exit status" : "signal", end.si_status);
}

}  // namespace cairn::bench
