#include "fsdp/comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_format.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/check.h"
#include "fsdp/comm/ordered_sum.h"
#include "fsdp/memory/torch_status.h"

namespace fsdpd {
namespace {

// An all-reduce of at most so many elements gathers all of them on every rank: one operation instead of two.
constexpr int64_t kSmallAllReduce = 4096;

constexpr int64_t kFloatBytes = sizeof(float);

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

// Bytes that cross the wire, or where they go.
struct Slice {
  char* data = nullptr;
  int64_t bytes = 0;
};

// LibTorch's Gloo with two things that it has not: a way to wake its waiters, and an exchange in place.
class Group : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  using SliceOf = std::function<Slice(int peer)>;

  // Sends `outgoing(p)` to every other rank p and receives `incoming(p)` from it, on the calling thread. An
  // incoming slice is as long as what that rank sends here; empty ones are not sent. `incoming` slices lie
  // within `target`: one buffer for all, so that any peer's loss ends the wait and not only that of the one
  // waited for.
  void Exchange(const SliceOf& outgoing, const SliceOf& incoming, Slice target) {
    const uint64_t slot = ++exchanges_;
    const auto to = MakeBuffer(target);
    std::vector<Buffer> from;
    int expected = 0;
    for (int step = 1; step < getSize(); ++step) {
      const int peer = (getRank() + step) % getSize();  // Not all to rank 0 first.
      const Slice in = incoming(peer), out = outgoing(peer);
      if (in.bytes > 0) {
        Of(to)->recv(peer, slot, in.data - target.data, in.bytes);
        ++expected;
      }
      if (out.bytes > 0) {
        from.push_back(MakeBuffer(out));
        Of(from.back())->send(peer, slot, 0, out.bytes);
      }
    }
    for (int i = 0; i < expected; ++i) Of(to)->waitRecv(nullptr, timeout());
    for (const Buffer& buffer : from) Of(buffer)->waitSend(nullptr, timeout());
  }

  void Break(const std::string& reason) {
    for (const auto& context : contexts_) {
      for (int peer = 0; peer < getSize(); ++peer) {
        if (peer == getRank()) continue;
        static_cast<gloo::transport::tcp::Pair*>(context->getPair(peer).get())
            ->signalExceptionExternal(reason);
      }
    }
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  Buffer MakeBuffer(Slice slice) {
    return contexts_.front()->createUnboundBuffer(slice.data, static_cast<size_t>(slice.bytes));
  }
  static gloo::transport::tcp::UnboundBuffer* Of(const Buffer& buffer) {
    return static_cast<gloo::transport::tcp::UnboundBuffer*>(buffer.get());
  }
  std::chrono::milliseconds timeout() { return getOptions()->timeout; }

  uint64_t exchanges_ =
      0;  // Numbers below 2^56 are free for exchanges: Gloo's own operations set the top byte.
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<Group> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    return Run("all_gather", [&] {
      if (count == 0) return;
      const int64_t bytes = count * BytesOf(dtype);
      Gather(static_cast<char*>(buffer), size() * bytes, [bytes](int r) { return Piece{r * bytes, bytes}; });
    });
  }

  absl::Status ReduceScatter(void* in, void* scratch, float* out, int64_t count, DType wire) override {
    return Run("reduce_scatter", [&] {
      if (count == 0) return;
      at::Tensor memory;
      if (wire == DType::kFp32) {
        memory = Floats(size() * count);
        scratch = memory.mutable_data_ptr();
      }
      const int64_t bytes = count * BytesOf(wire);
      ExchangeParts(in, scratch, bytes);
      Sum(static_cast<char*>(in) + rank() * bytes, scratch, wire, count, out);
    });
  }

  absl::Status AllReduce(float* buffer, int64_t count) override {
    return Run("all_reduce", [&] {
      if (count == 0) return;
      if (count <= kSmallAllReduce) {
        AllReduceSmall(buffer, count);
      } else {
        AllReduceLarge(buffer, count);
      }
    });
  }

  absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) override {
    return Run("all_to_all", [&] {
      if (count == 0) return;
      const int64_t bytes = count * BytesOf(dtype);
      ExchangeParts(in, out, bytes);
      std::memcpy(static_cast<char*>(out) + rank() * bytes, static_cast<const char*>(in) + rank() * bytes,
                  bytes);
    });
  }

  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) override {
    FSDPD_CHECK(root >= 0 && root < size());
    return Run("broadcast", [&] {
      if (count == 0) return;
      std::vector<at::Tensor> whole = {
          at::from_blob(buffer, {count * BytesOf(dtype)}, at::TensorOptions(at::kByte))};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(whole, options)->wait();
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

  // `piece_of(r)`: the bytes of `buffer` that rank r has and the others want.
  template <typename PieceOfRank>
  void Gather(char* buffer, int64_t total_bytes, PieceOfRank piece_of) {
    const auto slice_of = [&](int r) {
      const Piece piece = piece_of(r);
      return Slice{buffer + piece.begin, piece.count};
    };
    group_->Exchange([&](int) { return slice_of(rank()); }, slice_of, {buffer, total_bytes});
  }

  // Part r of `in` goes to rank r, part r of `out` comes from it; the own part stays where it is.
  void ExchangeParts(const void* in, void* out, int64_t bytes) {
    char* from = static_cast<char*>(const_cast<void*>(in));  // Gloo only reads what it sends.
    char* to = static_cast<char*>(out);
    group_->Exchange(
        [&](int r) {
          return Slice{from + r * bytes, bytes};
        },
        [&](int r) {
          return Slice{to + r * bytes, bytes};
        },
        {to, size() * bytes});
  }

  // The own part and what ExchangeParts received, in rank order.
  void Sum(const void* own, const void* received, DType type, int64_t count, float* out) const {
    std::vector<const void*> parts;
    for (int r = 0; r < size(); ++r) {
      parts.push_back(r == rank() ? own : static_cast<const char*>(received) + r * count * BytesOf(type));
    }
    SumInOrder(parts, type, count, out);
  }

  void AllReduceSmall(float* buffer, int64_t count) {
    const at::Tensor all = Floats(size() * count);
    const int64_t bytes = count * kFloatBytes;
    char* to = static_cast<char*>(all.mutable_data_ptr());
    const Slice own{reinterpret_cast<char*>(buffer), bytes};
    group_->Exchange([&](int) { return own; },
                     [&](int r) {
                       return Slice{to + r * bytes, bytes};
                     },
                     {to, size() * bytes});
    Sum(buffer, to, DType::kFp32, count, buffer);
  }

  // Every rank sums one piece where it lies; then they gather the pieces.
  void AllReduceLarge(float* buffer, int64_t count) {
    const auto bytes_of = [&](int r) {
      const Piece piece = PieceOf(r, size(), count);
      return Piece{piece.begin * kFloatBytes, piece.count * kFloatBytes};
    };
    const Piece own = PieceOf(rank(), size(), count);
    const at::Tensor parts = Floats(size() * own.count);
    char* from = reinterpret_cast<char*>(buffer);
    char* to = static_cast<char*>(parts.mutable_data_ptr());
    const int64_t own_bytes = own.count * kFloatBytes;
    group_->Exchange(
        [&](int r) {
          return Slice{from + bytes_of(r).begin, bytes_of(r).count};
        },
        [&](int r) {
          return Slice{to + r * own_bytes, own_bytes};
        },
        {to, size() * own_bytes});
    Sum(buffer + own.begin, to, DType::kFp32, own.count, buffer + own.begin);
    Gather(from, count * kFloatBytes, bytes_of);
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
