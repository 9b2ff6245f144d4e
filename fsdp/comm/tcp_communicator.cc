#include "fsdp/comm/tcp_communicator.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "fsdp/comm/ordered_sum.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/comm/tcp_group.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// An all-reduce of at most this many elements sends them all to every rank: one exchange instead of two.
constexpr int64_t kSmallAllReduce = 4096;

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kReceivedFloats = kMaxTcpReceivedBytes / kFloatBytes;

class TcpCommunicator : public Communicator {
 public:
  TcpCommunicator(std::unique_ptr<TcpGroup> group, std::string name)
      : group_(std::move(group)), name_(std::move(name)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    return Run("all_gather", [&] {
      if (count == 0) return absl::OkStatus();
      const int64_t bytes = count * BytesOf(dtype);
      return Gather(static_cast<char*>(buffer), [bytes](int r) { return Piece{r * bytes, bytes}; });
    });
  }

  absl::Status ReduceScatter(void* in, void* scratch, float* out, int64_t count, DType wire) override {
    return Run("reduce_scatter", [&] {
      if (count == 0) return absl::OkStatus();
      if (wire == DType::kFp32) {
        const auto piece_of = [count](int r) { return Piece{r * count, count}; };
        return SumPieces(static_cast<float*>(in), piece_of, out);
      }
      const int64_t bytes = count * BytesOf(wire);
      FSDPD_RETURN_IF_ERROR(ExchangeParts(in, scratch, bytes));
      Sum(static_cast<char*>(in) + rank() * bytes, scratch, wire, count, out);
      return absl::OkStatus();
    });
  }

  absl::Status AllReduce(float* buffer, int64_t count) override {
    return Run("all_reduce", [&] {
      if (count == 0) return absl::OkStatus();
      return count <= kSmallAllReduce ? AllReduceSmall(buffer, count) : AllReduceLarge(buffer, count);
    });
  }

  absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) override {
    return Run("all_to_all", [&] { return ExchangeParts(in, out, count * BytesOf(dtype)); });
  }

  absl::Status Send(const void* buffer, int64_t count, DType dtype, int to) override {
    FSDPD_CHECK(to >= 0 && to < size() && to != rank());
    return Run("send", [&] {
      if (count == 0) return absl::OkStatus();
      // The buffer is only read.
      return group_->SendTo(to, {static_cast<char*>(const_cast<void*>(buffer)), count * BytesOf(dtype)});
    });
  }

  absl::Status Receive(void* buffer, int64_t count, DType dtype, int from) override {
    FSDPD_CHECK(from >= 0 && from < size() && from != rank());
    return Run("receive", [&] {
      if (count == 0) return absl::OkStatus();
      return group_->ReceiveFrom(from, {static_cast<char*>(buffer), count * BytesOf(dtype)});
    });
  }

  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) override {
    FSDPD_CHECK(root >= 0 && root < size());
    return Run("broadcast", [&] {
      const Slice whole = {static_cast<char*>(buffer), count * BytesOf(dtype)};
      return group_->Exchange([&](int) { return rank() == root ? whole : Slice(); },
                              [&](int r) { return r == root ? whole : Slice(); });
    });
  }

  absl::Status Barrier() override {
    return Run("barrier", [&] {
      char own = 0;
      std::vector<char> others(size());
      return group_->Exchange(
          [&](int) {
            return Slice{&own, 1};
          },
          [&](int r) {
            return Slice{&others[r], 1};
          });
    });
  }

  void Abort() override {
    broken_ = true;
    group_->Break(absl::StrFormat("aborted by rank %d", rank()));
  }

 private:
  template <typename Body>
  absl::Status Run(const char* operation, Body body) {
    if (broken_) return Lost(operation, "the group is broken by an earlier error or by Abort");
    const absl::Status status = CatchTorch(body);
    if (status.ok()) return status;
    // Break the group even if the error is local, such as out of memory: the peers wait for this rank.
    broken_ = true;
    group_->Break(absl::StrFormat("rank %d failed in %s", rank(), operation));
    if (status.code() == absl::StatusCode::kResourceExhausted) return status;
    return Lost(operation, status.message());
  }

  absl::Status Lost(const char* operation, absl::string_view words) const {
    return PeerLostError(
        absl::StrFormat("%s of group '%s' on rank %d of %d: %s", operation, name_, rank(), size(), words));
  }

  // Reuses one buffer: a step's peak memory must not depend on what other lanes hold at the moment.
  float* Received(int64_t count) {
    if (received_.numel() < count) {
      received_ = at::Tensor();
      received_ = at::empty({count}, at::TensorOptions(at::kFloat));
    }
    return received_.mutable_data_ptr<float>();
  }

  // `piece_of(r)`: the bytes of `buffer` that rank r provides.
  template <typename PieceOfRank>
  absl::Status Gather(char* buffer, PieceOfRank piece_of) {
    const auto slice_of = [&](int r) {
      const Piece piece = piece_of(r);
      return Slice{buffer + piece.begin, piece.count};
    };
    return group_->Exchange([&](int) { return slice_of(rank()); }, slice_of);
  }

  // Sends part r of `in` to rank r and receives part r of `out` from it; the rank's own part is not copied.
  absl::Status ExchangeParts(const void* in, void* out, int64_t bytes) {
    char* from = static_cast<char*>(const_cast<void*>(in));  // Only read.
    char* to = static_cast<char*>(out);
    return group_->Exchange(
        [&](int r) {
          return Slice{from + r * bytes, bytes};
        },
        [&](int r) {
          return Slice{to + r * bytes, bytes};
        });
  }

  // Sums the rank's own part and the parts that ExchangeParts received, in rank order.
  void Sum(const void* own, const void* received, DType type, int64_t count, float* out) const {
    std::vector<const void*> parts;
    for (int r = 0; r < size(); ++r) {
      parts.push_back(r == rank() ? own : static_cast<const char*>(received) + r * count * BytesOf(type));
    }
    SumInOrder(parts, type, count, out);
  }

  // `piece_of(r)`: the floats of `in` whose sum rank r needs; piece 0 is the longest. The rank's own sum goes
  // to `out`, which may be its own piece.
  template <typename PieceOfRank>
  absl::Status SumPieces(float* in, PieceOfRank piece_of, float* out) {
    const int64_t longest = piece_of(0).count;
    const int64_t at_once = std::min(longest, std::max(int64_t{1}, kReceivedFloats / size()));
    float* received = Received(size() * at_once);
    for (int64_t done = 0; done < longest; done += at_once) {
      const auto part_of = [&](int r) {
        const Piece piece = piece_of(r);
        return Piece{piece.begin + done, std::clamp(piece.count - done, int64_t{0}, at_once)};
      };
      const Piece own = part_of(rank());
      FSDPD_RETURN_IF_ERROR(
          group_->Exchange([&](int r) { return SliceOf(in + part_of(r).begin, part_of(r).count); },
                           [&](int r) { return SliceOf(received + r * own.count, own.count); }));
      Sum(in + own.begin, received, DType::kFp32, own.count, out + done);
    }
    return absl::OkStatus();
  }

  absl::Status AllReduceSmall(float* buffer, int64_t count) {
    float* received = Received(size() * count);
    FSDPD_RETURN_IF_ERROR(group_->Exchange([&](int) { return SliceOf(buffer, count); },
                                           [&](int r) { return SliceOf(received + r * count, count); }));
    Sum(buffer, received, DType::kFp32, count, buffer);
    return absl::OkStatus();
  }

  // Every rank sums one piece in place; then all gather the pieces.
  absl::Status AllReduceLarge(float* buffer, int64_t count) {
    const auto piece_of = [&](int r) { return PieceOf(r, size(), count); };
    FSDPD_RETURN_IF_ERROR(SumPieces(buffer, piece_of, buffer + piece_of(rank()).begin));
    return Gather(reinterpret_cast<char*>(buffer), [&](int r) {
      return Piece{piece_of(r).begin * kFloatBytes, piece_of(r).count * kFloatBytes};
    });
  }

  static Slice SliceOf(float* begin, int64_t count) {
    return {reinterpret_cast<char*>(begin), count * kFloatBytes};
  }

  const std::unique_ptr<TcpGroup> group_;
  const std::string name_;
  at::Tensor received_;
  std::atomic<bool> broken_{false};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const CommunicatorOptions& options,
                                                                  Store* store) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TcpGroup> group, TcpGroup::Connect(options, store));
  return std::make_unique<TcpCommunicator>(std::move(group), options.name);
}

}  // namespace fsdpd
