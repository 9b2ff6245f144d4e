#include "fsdp/comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_format.h>
#include <gloo/transport/tcp/pair.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/check.h"
#include "fsdp/comm/ordered_sum.h"
#include "fsdp/memory/torch_status.h"

namespace fsdpd {
namespace {

// An all-reduce of at most so many elements gathers all of them on every rank: one operation instead of two.
constexpr int64_t kSmallAllReduce = 4096;

// Our store as Gloo wants it. Gloo throws away what went wrong; error() keeps it.
class StoreForGloo : public c10d::Store {
 public:
  StoreForGloo(fsdpd::Store* store, std::string name, absl::Duration timeout)
      : c10d::Store(absl::ToChronoMilliseconds(timeout)), store_(store), name_(std::move(name)) {}

  const absl::Status& error() const { return error_; }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    Check(store_->Set(Prefixed(key), std::string(value.begin(), value.end())));
  }

  std::vector<uint8_t> get(const std::string& key) override { return Get(key, timeout_); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Get(key, std::min(timeout, timeout_));
  }

  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
      return store_->Get(Prefixed(key), absl::ZeroDuration()).ok();
    });
  }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreForGloo>(store_, name_, absl::FromChrono(timeout_));
  }

  // Values are written once.
  int64_t add(const std::string& key, int64_t) override { Refuse("add", key); }
  bool deleteKey(const std::string& key) override { Refuse("deleteKey", key); }
  int64_t getNumKeys() override { Refuse("getNumKeys", ""); }

 private:
  std::string Prefixed(const std::string& key) const { return name_ + "/" + key; }

  std::vector<uint8_t> Get(const std::string& key, std::chrono::milliseconds timeout) {
    const auto value = store_->Get(Prefixed(key), absl::FromChrono(timeout));
    Check(value.status());
    return {value->begin(), value->end()};
  }

  void Check(const absl::Status& status) {
    if (status.ok()) return;
    error_ = status;
    throw std::runtime_error(status.ToString());
  }

  [[noreturn]] static void Refuse(const char* operation, const std::string& key) {
    throw std::logic_error(absl::StrFormat("the rendezvous store has no %s (%s)", operation, key));
  }

  fsdpd::Store* const store_;
  const std::string name_;
  absl::Status error_;
};

// LibTorch's Gloo with a way to wake its waiters: it has no abort of its own.
class Group : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void Break(const std::string& reason) {
    for (const auto& context : contexts_) {
      for (int peer = 0; peer < getSize(); ++peer) {
        if (peer == getRank()) continue;
        static_cast<gloo::transport::tcp::Pair*>(context->getPair(peer).get())
            ->signalExceptionExternal(reason);
      }
    }
  }
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<Group> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    return Run("all_gather", [&] {
      const at::ScalarType type = dtype == DType::kFp32 ? at::kFloat : at::kBFloat16;
      if (count > 0) Gather(at::from_blob(buffer, {size() * count}, at::TensorOptions(type)));
    });
  }

  absl::Status ReduceScatter(float* in, float* out, int64_t count) override {
    return Run("reduce_scatter", [&] {
      if (count == 0) return;
      const at::Tensor parts = Exchange(in, std::vector<int64_t>(size(), count), count);
      Sum(parts, count, out);
    });
  }

  absl::Status AllReduce(float* buffer, int64_t count) override {
    return Run("all_reduce", [&] {
      if (count == 0) return;
      // Beyond the square of the size, no rank's piece is empty.
      if (count <= std::max<int64_t>(kSmallAllReduce, int64_t{size()} * size())) {
        AllReduceSmall(buffer, count);
      } else {
        AllReduceLarge(buffer, count);
      }
    });
  }

  absl::Status Barrier() override {
    return Run("barrier", [&] { group_->barrier()->wait(); });
  }

  void Abort() override {
    broken_ = true;
    group_->Break(absl::StrFormat("aborted by rank %d", rank()));
  }

 private:
  template <typename Body>
  absl::Status Run(const char* operation, Body body) {
    if (broken_) return Lost(operation, "the group is broken by an earlier error or by Abort");
    const absl::Status status = CatchTorch([&] {
      body();
      return absl::OkStatus();
    });
    if (status.ok()) return status;
    // Not enough memory, say: the peers wait for this rank all the same.
    broken_ = true;
    group_->Break(absl::StrFormat("rank %d failed in %s", rank(), operation));
    if (status.code() == absl::StatusCode::kResourceExhausted) return status;
    return Lost(operation, status.message());
  }

  absl::Status Lost(const char* operation, absl::string_view words) const {
    return absl::UnavailableError(
        absl::StrFormat("%s of group '%s' on rank %d of %d: %s", operation, name_, rank(), size(), words));
  }

  static at::Tensor Floats(int64_t count) { return at::empty({count}, at::TensorOptions(at::kFloat)); }

  // In place: Gloo gathers into memory of its own before it writes the output.
  void Gather(at::Tensor whole) {
    const int64_t count = whole.numel() / size();
    at::Tensor own = whole.narrow(0, rank() * count, count);
    group_->_allgather_base(whole, own)->wait();
  }

  // Sends the r-th piece of `in` to rank r; returns what every rank sent here, `own` elements each, by rank.
  at::Tensor Exchange(float* in, std::vector<int64_t> pieces, int64_t own) {
    int64_t total = 0;
    for (const int64_t piece : pieces) total += piece;
    at::Tensor from = at::from_blob(in, {total}, at::TensorOptions(at::kFloat));
    at::Tensor to = Floats(size() * own);
    std::vector<int64_t> received(size(), own);
    group_->alltoall_base(to, from, received, pieces)->wait();
    return to;
  }

  void Sum(const at::Tensor& parts, int64_t count, float* out) const {
    std::vector<const float*> pointers;
    for (int r = 0; r < size(); ++r) pointers.push_back(parts.const_data_ptr<float>() + r * count);
    SumInOrder(pointers, count, out);
  }

  void AllReduceSmall(float* buffer, int64_t count) {
    const at::Tensor all = Floats(size() * count);
    std::memcpy(all.mutable_data_ptr<float>() + rank() * count, buffer, count * sizeof(float));
    Gather(all);
    Sum(all, count, buffer);
  }

  // Every rank sums one piece; then they gather the pieces, of which the last may be padded.
  void AllReduceLarge(float* buffer, int64_t count) {
    std::vector<int64_t> pieces;
    for (int r = 0; r < size(); ++r) pieces.push_back(PieceOf(r, size(), count).count);
    const int64_t own = pieces[rank()];
    const at::Tensor parts = Exchange(buffer, pieces, own);
    const at::Tensor sums = Floats(size() * pieces[0]);
    Sum(parts, own, sums.mutable_data_ptr<float>() + rank() * pieces[0]);
    Gather(sums);
    std::memcpy(buffer, sums.const_data_ptr<float>(), count * sizeof(float));
  }

  const c10::intrusive_ptr<Group> group_;
  const std::string name_;
  std::atomic<bool> broken_{false};
};

// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that left would kill this process by SIGPIPE before
// the error is seen. Python ignores the signal for all who use LibTorch from there; a handler somebody set is
// kept.
void IgnoreBrokenPipes() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

// LibTorch 2.11 records every collective in one map for the whole process and inserts into it without a lock,
// so two communicators whose first operations meet on two threads (gather and reduce do) can crash the rank.
// The variable is read when the first operation is recorded.
void TurnOffTorchRecorder() {
  static const int once = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  FSDPD_CHECK(once == 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeGlooCommunicator(const CommunicatorOptions& options,
                                                                   Store* store) {
  IgnoreBrokenPipes();
  TurnOffTorchRecorder();
  auto adapter = c10::make_intrusive<StoreForGloo>(store, options.name, options.rendezvous_timeout);
  c10::intrusive_ptr<Group> group;
  const absl::Status status = CatchTorch([&] {
    auto gloo = Group::Options::create(absl::ToChronoMilliseconds(options.rendezvous_timeout));
    gloo->devices = {Group::createDeviceForHostname(options.bind_address)};
    gloo->threads = 1;  // One operation at a time.
    group = c10::make_intrusive<Group>(adapter, options.rank, options.size, gloo);
    group->setTimeout(absl::ToChronoMilliseconds(options.operation_timeout));
    return absl::OkStatus();
  });
  if (!adapter->error().ok()) return adapter->error();
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrFormat("connecting group '%s' on rank %d of %d at %s: %s",
                                                  options.name, options.rank, options.size,
                                                  options.bind_address, status.message()));
  }
  return std::make_unique<GlooCommunicator>(std::move(group), options.name);
}

}  // namespace fsdpd
