#include "fsdp/comm/local_communicator.h"

#include <absl/strings/str_format.h>

#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "fsdp/comm/ordered_sum.h"

namespace fsdpd {
namespace {

// Arguments of one rank's call.
struct Call {
  const char* operation = "";
  int64_t count = 0;
  DType dtype = DType::kFp32;
  int root = -1;  // Broadcast.
  char* buffer = nullptr;
};

// Compares what must be equal on all ranks.
bool IsSameCall(const Call& a, const Call& b) {
  return a.count == b.count && a.dtype == b.dtype && a.root == b.root &&
         std::strcmp(a.operation, b.operation) == 0;
}

std::string Describe(const Call& call) {
  const std::string root = call.root < 0 ? "" : absl::StrFormat(" from rank %d", call.root);
  return absl::StrFormat("%s of %d %s%s", call.operation, call.count, NameOf(call.dtype), root);
}

class LocalGroup {
 public:
  explicit LocalGroup(int size) : calls_(size) {}

  // Publishes `call`, waits until every rank has, and returns all calls. Fails immediately after Abort. If it
  // succeeds, it does so on every rank, and each then calls Meet().
  absl::StatusOr<std::vector<Call>> Begin(int rank, const Call& call) {
    MutexLock lock(&mutex_);
    calls_[rank] = call;
    const int64_t round = round_;
    if (aborted_.ok()) Arrive();
    while (round == round_ && aborted_.ok()) changed_.Wait(&mutex_);
    if (round == round_) {
      return absl::UnavailableError(absl::StrFormat("%s: %s", call.operation, aborted_.message()));
    }
    return calls_;
  }

  // Waits for every rank, even after Abort: between Begin and Meet ranks only copy memory, and their buffers
  // must stay valid meanwhile.
  void Meet() {
    MutexLock lock(&mutex_);
    const int64_t round = round_;
    Arrive();
    while (round == round_) changed_.Wait(&mutex_);
  }

  // Waits until the receiver has copied the buffer.
  absl::Status Send(int from, int to, const Call& call) {
    MutexLock lock(&mutex_);
    Message& message = messages_[{from, to}];
    message = {Message::State::kOffered, call, {}};
    changed_.SignalAll();
    // A copy in progress must complete, even after Abort.
    while (message.state == Message::State::kCopying ||
           (message.state == Message::State::kOffered && aborted_.ok()))
      changed_.Wait(&mutex_);
    if (message.state == Message::State::kTaken) return std::exchange(message, Message()).status;
    message = Message();
    return absl::UnavailableError(absl::StrFormat("%s: %s", call.operation, aborted_.message()));
  }

  absl::Status Receive(int from, int to, const Call& call) {
    Call sent;
    {
      MutexLock lock(&mutex_);
      const Message& message = messages_[{from, to}];
      while (message.state != Message::State::kOffered && aborted_.ok()) changed_.Wait(&mutex_);
      if (message.state != Message::State::kOffered)
        return absl::UnavailableError(absl::StrFormat("%s: %s", call.operation, aborted_.message()));
      sent = message.call;
      messages_[{from, to}].state = Message::State::kCopying;
    }
    absl::Status status;
    if (sent.count != call.count || sent.dtype != call.dtype) {
      status = absl::FailedPreconditionError(
          absl::StrFormat("rank %d sends %d %s to rank %d, which expects %d %s", from, sent.count,
                          NameOf(sent.dtype), to, call.count, NameOf(call.dtype)));
    } else if (call.count > 0) {
      std::memcpy(call.buffer, sent.buffer, call.count * BytesOf(call.dtype));
    }
    MutexLock lock(&mutex_);
    messages_[{from, to}].state = Message::State::kTaken;
    messages_[{from, to}].status = status;
    changed_.SignalAll();
    return status;
  }

  void Abort(const std::string& reason) {
    MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = absl::UnavailableError(reason);
    changed_.SignalAll();
  }

 private:
  void Arrive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (++arrived_ < static_cast<int>(calls_.size())) return;
    arrived_ = 0;
    ++round_;
    changed_.SignalAll();
  }

  // A message from one rank to another; one at a time.
  struct Message {
    enum class State { kEmpty, kOffered, kCopying, kTaken };
    State state = State::kEmpty;
    Call call;
    absl::Status status;  // Set by the receiver.
  };

  Mutex mutex_;
  CondVar changed_;
  std::map<std::pair<int, int>, Message> messages_ ABSL_GUARDED_BY(mutex_);  // By sender and receiver.
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);                          // By rank.
  int arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}
  ~LocalCommunicator() override { group_->Abort(absl::StrFormat("rank %d left", rank_)); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    FSDPD_ASSIGN_OR_RETURN(const auto calls, Begin("all_gather", count, dtype, buffer));
    const int64_t bytes = count * BytesOf(dtype);
    CopyOthersParts(calls, [bytes](int r) { return Piece{r * bytes, bytes}; });
    group_->Meet();
    return absl::OkStatus();
  }

  // Each rank reads the others' memory directly, so scratch is not needed.
  absl::Status ReduceScatter(void* in, void* /*scratch*/, float* out, int64_t count, DType wire) override {
    FSDPD_ASSIGN_OR_RETURN(const auto calls, Begin("reduce_scatter", count, wire, in));
    SumInOrder(PartsAt(calls, rank_ * count * BytesOf(wire)), wire, count, out);
    group_->Meet();
    return absl::OkStatus();
  }

  // Each rank sums one piece into its own buffer, then all copy each other's pieces.
  absl::Status AllReduce(float* buffer, int64_t count) override {
    FSDPD_ASSIGN_OR_RETURN(const auto calls, Begin("all_reduce", count, DType::kFp32, buffer));
    constexpr int64_t kWidth = sizeof(float);
    const Piece own = PieceOf(rank_, size_, count);
    SumInOrder(PartsAt(calls, own.begin * kWidth), DType::kFp32, own.count, buffer + own.begin);
    group_->Meet();
    CopyOthersParts(calls, [&](int r) {
      const Piece piece = PieceOf(r, size_, count);
      return Piece{piece.begin * kWidth, piece.count * kWidth};
    });
    group_->Meet();
    return absl::OkStatus();
  }

  absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) override {
    FSDPD_ASSIGN_OR_RETURN(const auto calls, Begin("all_to_all", count, dtype, const_cast<void*>(in)));
    const int64_t bytes = count * BytesOf(dtype);
    for (int r = 0; r < size_ && bytes > 0; ++r) {
      if (r != rank_)
        std::memcpy(static_cast<char*>(out) + r * bytes, calls[r].buffer + rank_ * bytes, bytes);
    }
    group_->Meet();
    return absl::OkStatus();
  }

  absl::Status Send(const void* buffer, int64_t count, DType dtype, int to) override {
    FSDPD_CHECK(to >= 0 && to < size_ && to != rank_);
    return group_->Send(rank_, to, {"send", count, dtype, -1, static_cast<char*>(const_cast<void*>(buffer))});
  }

  absl::Status Receive(void* buffer, int64_t count, DType dtype, int from) override {
    FSDPD_CHECK(from >= 0 && from < size_ && from != rank_);
    return group_->Receive(from, rank_, {"receive", count, dtype, -1, static_cast<char*>(buffer)});
  }

  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) override {
    FSDPD_CHECK(root >= 0 && root < size_);
    FSDPD_ASSIGN_OR_RETURN(const auto calls, Begin("broadcast", count, dtype, buffer, root));
    const int64_t bytes = count * BytesOf(dtype);
    if (rank_ != root && bytes > 0) std::memcpy(buffer, calls[root].buffer, bytes);
    group_->Meet();
    return absl::OkStatus();
  }

  absl::Status Barrier() override {
    FSDPD_RETURN_IF_ERROR(Begin("barrier", 0, DType::kFp32, nullptr).status());
    group_->Meet();
    return absl::OkStatus();
  }

  void Abort() override { group_->Abort(absl::StrFormat("aborted by rank %d", rank_)); }

 private:
  absl::StatusOr<std::vector<Call>> Begin(const char* operation, int64_t count, DType dtype, void* buffer,
                                          int root = -1) {
    return Begin(Call{operation, count, dtype, root, static_cast<char*>(buffer)});
  }

  absl::StatusOr<std::vector<Call>> Begin(const Call& own) {
    FSDPD_ASSIGN_OR_RETURN(auto calls, group_->Begin(rank_, own));
    for (int r = 1; r < size_; ++r) {
      if (IsSameCall(calls[0], calls[r])) continue;
      group_->Meet();
      return absl::FailedPreconditionError(
          absl::StrFormat("rank 0 called %s, rank %d called %s", Describe(calls[0]), r, Describe(calls[r])));
    }
    return calls;
  }

  // `bytes_of(r)`: the range of a buffer that rank r has computed.
  template <typename BytesOfRank>
  void CopyOthersParts(const std::vector<Call>& calls, BytesOfRank bytes_of) {
    for (int r = 0; r < size_; ++r) {
      const Piece bytes = bytes_of(r);
      if (r == rank_ || bytes.count == 0) continue;
      std::memcpy(calls[rank_].buffer + bytes.begin, calls[r].buffer + bytes.begin, bytes.count);
    }
  }

  static std::vector<const void*> PartsAt(const std::vector<Call>& calls, int64_t begin_bytes) {
    std::vector<const void*> parts;
    for (const Call& call : calls) parts.push_back(call.buffer + begin_bytes);
    return parts;
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
  const int size_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int size) {
  FSDPD_CHECK(size > 0);
  auto group = std::make_shared<LocalGroup>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<LocalCommunicator>(group, rank, size));
  return ranks;
}

}  // namespace fsdpd
