// Fake rank for tests: speaks rank.proto on descriptor 3 like fsdpd-rank, but does not train. The name of the
// job selects its behavior (kBehaviors, below).
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/rank/exit_code.h"
#include "base/rank/flight_recorder.h"
#include "base/rank/frame.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {
namespace {

constexpr int kAgent = 3;

void Send(const v1::RankToAgent& message) {
  if (!WriteFrame(kAgent, message).ok()) exit(9);
}

v1::AgentToRank Receive() {
  v1::AgentToRank message;
  if (!ReadFrame(kAgent, &message).ok()) exit(9);
  return message;
}

void Started(const v1::RestoredCheckpoint* restored = nullptr) {
  v1::RankToAgent message;
  if (restored != nullptr) *message.mutable_started()->mutable_restored() = *restored;
  v1::MemoryPlan* plan = message.mutable_started()->mutable_memory_plan();
  plan->set_peak_bytes(300);
  plan->add_components()->set_name("optimizer");
  plan->mutable_components(0)->set_bytes(300);
  Send(message);
}

// Numbers that are easy to sum: step n takes n seconds.
void Step(int64_t step) {
  v1::RankToAgent message;
  v1::StepReport* report = message.mutable_step();
  report->set_step(step);
  report->set_loss(10.0 / static_cast<double>(step));
  report->set_grad_norm(0.5);
  report->set_learning_rate(0.001);
  report->set_step_seconds(static_cast<double>(step));
  report->set_tokens(1000);
  report->set_compute_seconds(0.25);
  v1::OpTime* op = report->add_ops();
  op->set_op(v1::COMM_OP_ALL_GATHER);
  op->set_seconds(0.5);
  op->set_exposed_seconds(0.125);
  op->set_bytes(4096);
  report->mutable_memory()->set_allocated_bytes(100);
  report->mutable_memory()->set_reserved_bytes(400);
  report->mutable_memory()->set_peak_bytes(200);
  report->mutable_memory()->set_device_mallocs(7);
  report->set_unix_nanos(1'700'000'000'000'000'000);
  Send(message);
}

int Finish(const std::string& error = "", int code = 0) {
  v1::RankToAgent message;
  message.mutable_finished()->set_error(error);
  Send(message);
  return code;
}

// Blocks until the agent closes the socket or a signal ends this process.
int Wait() {
  char byte;
  while (recv(kAgent, &byte, 1, 0) > 0) {
  }
  return 9;
}

int Train(const v1::RankLaunch& launch) {
  Started();
  for (int64_t step = 1; step <= launch.spec().train().steps(); ++step) Step(step);
  printf("trained %d of %d\n", launch.rank(), launch.world_size());
  fflush(stdout);
  return Finish();
}

void Saved(int64_t step, const std::string& error = "") {
  v1::RankToAgent message;
  v1::SavedCheckpoint* saved = message.mutable_saved();
  saved->set_step(step);
  saved->set_path("/runs/7/iter_" + std::to_string(step));
  saved->set_bytes(error.empty() ? 4096 : 0);
  saved->set_seconds(2);
  saved->set_stall_seconds(0.25);
  saved->set_error(error);
  saved->set_unix_nanos(1'700'000'000'000'000'000);
  Send(message);
}

// Resumes after step 4, commits one checkpoint and fails to write another.
int Save(const v1::RankLaunch& launch) {
  v1::RestoredCheckpoint restored;
  restored.set_step(4);
  restored.set_path("/runs/7/iter_4");
  restored.add_skipped_checkpoints("/runs/7/iter_5: torn");
  Started(&restored);
  if (launch.rank() == 0) Saved(6);
  if (launch.rank() == 0) Saved(8, "No space left on device");
  return Finish();
}

int Fail(const v1::RankLaunch&) {
  Started();
  for (int i = 1; i <= 50; ++i) fprintf(stderr, "line %d\n", i);
  return Finish("loss is NaN at step 3", 4);
}

int Segv(const v1::RankLaunch&) {
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
  return 0;
}

// Rank 0 dies immediately, the others wait for it.
int FirstDies(const v1::RankLaunch& launch) {
  Started();
  return launch.rank() == 0 ? Finish("first", 1) : Wait();
}

// Like a library that calls exit().
int ExitsWithoutFinished(const v1::RankLaunch&) {
  Started();
  return 0;
}

int Stay(const v1::RankLaunch&) {
  Started();
  return Wait();
}

int Stubborn(const v1::RankLaunch&) {
  signal(SIGTERM, SIG_IGN);
  Started();
  return Wait();
}

// A child in its own session whose parent has exited, and one in the group of the rank. The first orphan
// reports when it is in its own session; the rank does not start before.
int Orphans(const v1::RankLaunch&) {
  if (system("(setsid sh -c 'echo; exec sleep 1000 >/dev/null' & sleep 1001 >/dev/null &) | head -n 1 "
             ">/dev/null") != 0) {
    return 8;
  }
  printf("orphaned\n");
  fflush(stdout);
  Started();
  return Wait();
}

int OrphansThenExit(const v1::RankLaunch& launch) {
  if (system("setsid sleep 1002 & (sleep 1003 &)") != 0) return 8;
  return Finish();
}

int Flood(const v1::RankLaunch&) {
  Started();
  for (int i = 0; i < 20000; ++i) printf("flood %d\n", i);
  printf("%s\n", std::string(100000, 'x').c_str());
  printf("binary \xff\xfe end\n");
  fflush(stdout);
  return Finish();
}

// Each rank sets its number and expects the number of the previous rank. Returns the error, or "".
std::string PassOn(const v1::RankLaunch& launch) {
  const int before = (launch.rank() + launch.world_size() - 1) % launch.world_size();
  v1::RankToAgent message;
  message.mutable_store_get()->set_key("addr/" + std::to_string(before));
  message.mutable_store_get()->set_request(77);
  Send(message);
  message.mutable_store_set()->set_key("addr/" + std::to_string(launch.rank()));
  message.mutable_store_set()->set_value("rank " + std::to_string(launch.rank()));
  Send(message);
  const v1::StoreValue value = Receive().store_value();
  const bool right = value.request() == 77 && value.value() == "rank " + std::to_string(before);
  return right ? "" : "wrong value: " + value.value();
}

int Exchange(const v1::RankLaunch& launch) {
  const std::string wrong = PassOn(launch);
  if (!wrong.empty()) return Finish(wrong, 1);
  Started();
  return Finish();
}

// Like a rank that saves and leaves.
int ExchangeOnLeave(const v1::RankLaunch& launch) {
  Started();
  if (!Receive().has_leave()) return Finish("unexpected message", 1);
  const std::string wrong = PassOn(launch);
  return wrong.empty() ? Finish("exchanged", 143) : Finish(wrong, 1);
}

// Sets a key to two different values.
int SetTwice(const v1::RankLaunch&) {
  v1::RankToAgent message;
  message.mutable_store_set()->set_key("k");
  for (const char* value : {"a", "a", "b"}) {
    message.mutable_store_set()->set_value(value);
    Send(message);
  }
  return Wait();
}

// Prints its environment.
int Environment(const v1::RankLaunch& launch) {
  const char* threads = getenv("OMP_NUM_THREADS");
  printf("omp=%s\n", threads == nullptr ? "" : threads);
  printf("group=%d session=%d\n", getpgid(0) == getpid(), getsid(0) == getpid());
  printf("stdin=%s\n", std::filesystem::read_symlink("/proc/self/fd/0").c_str());
  int highest = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) highest = fd;
  }
  printf("highest_fd=%d\n", highest);
  printf("bind=%s device=%d\n", launch.bind_address().c_str(), launch.device());
  fflush(stdout);
  return Finish();
}

// Rank 0 dies on its own; the others wait until they get PeerFailed.
int PeerDies(const v1::RankLaunch& launch) {
  Started();
  if (launch.rank() == 0) return Finish("first", 1);
  const v1::AgentToRank message = Receive();
  if (!message.has_peer_failed() || message.peer_failed().rank() != 0) return Finish("unexpected message", 1);
  return Finish("notified", kPeerFailedExitCode);
}

// Rank 0 exits because it lost a peer, before the exit of the peer is observed: rank 1 dies on PeerFailed.
int LosesPeer(const v1::RankLaunch& launch) {
  Started();
  if (launch.rank() == 0) return Finish("lost", kPeerFailedExitCode);
  if (!Receive().has_peer_failed()) return Finish("unexpected message", 1);
  return raise(SIGKILL);
}

// Shows a position inside of a collective in its flight recorder.
std::unique_ptr<FlightRecorder> BlockInReduce() {
  absl::StatusOr<std::unique_ptr<FlightRecorder>> page = FlightRecorder::Map(kFlightRecorderFd);
  if (!page.ok()) exit(8);
  (*page)->Describe({{"compute"}, {"reduce", /*exchanges=*/true}},
                    {"Backward layer.2 mb 0", "Reduce layer.2 mb 0", "Norm"}, {});
  (*page)->word(0)->store(PackProgress({12, 0, /*evaluation=*/false, /*inside=*/false}));
  (*page)->word(1)->store(PackProgress({12, 1, /*evaluation=*/false, /*inside=*/true}));
  return *std::move(page);
}

int BlocksInReduce(const v1::RankLaunch&) {
  const auto page = BlockInReduce();
  printf("blocked");  // Without a line end.
  fflush(stdout);
  Started();
  return Wait();
}

// Like streams after an abort: instructions after the collective run.
int ContinuesAfterAbort(const v1::RankLaunch&) {
  const auto page = BlockInReduce();
  Started();
  if (!Receive().has_peer_failed()) return Finish("unexpected message", 1);
  page->word(1)->store(PackProgress({12, 2, /*evaluation=*/false, /*inside=*/true}));
  return Finish("notified", kPeerFailedExitCode);
}

// Leaves on LeaveOrder, like a rank that has saved. "One": only rank 0 does, the others ignore it.
int LeaveOnOrder(const v1::RankLaunch&) {
  Started();
  const v1::AgentToRank message = Receive();
  if (!message.has_leave()) return Finish("unexpected message", 1);
  Saved(12);
  return Finish("left within " + std::to_string(message.leave().within_ms()) + " ms", 143);
}

int OneLeavesOnOrder(const v1::RankLaunch& launch) {
  if (launch.rank() == 0) return LeaveOnOrder(launch);
  Started();
  return Wait();
}

// Rank 0 dies on LeaveOrder, the others ignore it.
int OneDiesOnOrder(const v1::RankLaunch& launch) {
  Started();
  if (launch.rank() != 0) return Wait();
  return Receive().has_leave() ? Segv(launch) : Finish("unexpected message", 1);
}

// Reports one more traced step than was requested.
int TraceOnOrder(const v1::RankLaunch& launch) {
  Started();
  const v1::TraceOrder order = Receive().trace();
  for (int64_t step = order.first_step(); step <= order.first_step() + order.steps(); ++step) {
    v1::RankToAgent message;
    message.mutable_trace_result()->set_step(step);
    message.mutable_trace_result()->set_path(launch.files_dir());
    message.mutable_trace_result()->set_requested(step < order.first_step() + order.steps());
    Send(message);
  }
  return Finish();
}

// Five steps, of which only 3 and 4 are not skipped.
int Skip(const v1::RankLaunch&) {
  Started();
  for (int64_t step = 1; step <= 5; ++step) {
    v1::RankToAgent message;
    message.mutable_step()->set_step(step);
    if (step < 3 || step > 4) message.mutable_step()->mutable_bad_step()->set_step(step);
    Send(message);
  }
  return Finish();
}

// Rank 1 follows the variable: "hangs", "fails", or succeeds.
int Measure(const v1::RankLaunch& launch) {
  const char* const asked = getenv("FSDPD_FAKE_PREFLIGHT");
  const std::string behavior = asked == nullptr || launch.rank() != 1 ? "" : asked;
  if (behavior == "hangs") return Wait();
  if (behavior == "fails") return Finish("no such device", 1);
  v1::RankToAgent message;
  message.mutable_measured()->set_device(launch.device());
  message.mutable_measured()->set_name("cpu");
  message.mutable_measured()->set_matmul_flops(1e9 * (launch.rank() + 1));
  Send(message);
  return Finish();
}

int Garbage(const v1::RankLaunch&) {
  if (write(kAgent, "\xff\xff\xff\xff", 4) != 4) return 8;
  return Wait();
}

const std::map<std::string, std::function<int(const v1::RankLaunch&)>> kBehaviors = {
    {"train", Train},
    {"save", Save},
    {"fail", Fail},
    {"segv", Segv},
    {"first-dies", FirstDies},
    {"exits-without-finished", ExitsWithoutFinished},
    {"stay", Stay},
    {"stubborn", Stubborn},
    {"orphans", Orphans},
    {"orphans-then-exit", OrphansThenExit},
    {"flood", Flood},
    {"exchange", Exchange},
    {"exchange-on-leave", ExchangeOnLeave},
    {"set-twice", SetTwice},
    {"garbage", Garbage},
    {"environment", Environment},
    {"peer-dies", PeerDies},
    {"loses-peer", LosesPeer},
    {"blocks-in-reduce", BlocksInReduce},
    {"continues-after-abort", ContinuesAfterAbort},
    {"leave-on-order", LeaveOnOrder},
    {"one-leaves-on-order", OneLeavesOnOrder},
    {"one-dies-on-order", OneDiesOnOrder},
    {"trace-on-order", TraceOnOrder},
    {"skip", Skip},
};

}  // namespace
}  // namespace fsdpd

int main() {
  const fsdpd::v1::RankLaunch launch = fsdpd::Receive().launch();
  if (launch.preflight()) return fsdpd::Measure(launch);
  const auto behavior = fsdpd::kBehaviors.find(launch.spec().name());
  return behavior == fsdpd::kBehaviors.end() ? 64 : behavior->second(launch);
}
