// Requirements on every transport, as a parameterized test suite. The test of a transport instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Cpu, CommunicatorSuite, testing::Combine(testing::Values(Transport{...}),
//   sizes));
// Ranks are threads. Inputs are small integers, so sums are exact in any order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/holds_on_all_ranks.h"
#include "fsdp/comm/testing/communicator_test_ranks.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {

struct Transport {
  std::string name;
  std::function<Members(int size)> make;
  // Called on each rank's thread before its first operation. Returns the device of its buffers.
  std::function<at::Device(int rank)> device = [](int) { return at::Device(at::kCPU); };
  int max_ranks = 8;
  bool abort_reaches_peers = true;
};

inline at::Tensor OnDevice(const std::vector<float>& values, at::Device device, DType dtype = DType::kFp32) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kFloat));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<float>());
  return host.to(ScalarTypeOf(dtype)).to(device);
}

inline std::vector<float> OnHost(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).to(at::kFloat);  // Synchronizes with the current stream.
  const float* begin = host.const_data_ptr<float>();
  return {begin, begin + host.numel()};
}

// Element i of rank r's input; exact in bf16 and fp16, as are sums of eight of them.
inline float Value(int rank, int64_t i) { return static_cast<float>((rank * 7 + i) % 31 + 1); }

inline std::vector<float> Values(int rank, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

inline std::vector<float> SumOfValues(int size, int64_t begin, int64_t count) {
  std::vector<float> sums(count);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < count; ++i) sums[i] += Value(r, begin + i);
  }
  return sums;
}

using SuiteParameter = std::tuple<Transport, int>;

inline std::string NameOfCase(const testing::TestParamInfo<SuiteParameter>& info) {
  return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
}

class CommunicatorSuite : public testing::TestWithParam<SuiteParameter> {
 protected:
  void SetUp() override {
    const Transport& transport = std::get<0>(GetParam());
    size_ = std::get<1>(GetParam());
    if (size_ > transport.max_ranks)
      GTEST_SKIP() << "needs " << size_ << " devices, has " << transport.max_ranks;
    device_ = transport.device;
    group_ = transport.make(size_);
    ASSERT_EQ(group_.size(), static_cast<size_t>(size_));
    abort_reaches_peers_ = transport.abort_reaches_peers;
  }

  // On all ranks concurrently: destruction is collective in NCCL.
  void TearDown() override {
    OnEveryRank(static_cast<int>(group_.size()), [this](int rank) { group_[rank].reset(); });
  }

  int size_ = 0;
  std::function<at::Device(int)> device_;
  bool abort_reaches_peers_ = true;
  Members group_;
};

constexpr int64_t kSuiteCounts[] = {0, 1, 2, 33, 4096, 4097, 100003};

TEST_P(CommunicatorSuite, HasRankAndSize) {
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_EQ(group_[rank]->rank(), rank);
    EXPECT_EQ(group_[rank]->size(), size_);
  }
}

TEST_P(CommunicatorSuite, HoldsOnAllRanksNeedsEveryRank) {
  const auto held = [&](int missing) {
    std::vector<char> answers(size_);
    OnEveryRank(size_, [&](int rank) {
      const at::Tensor token = OnDevice({-1}, device_(rank));
      const absl::StatusOr<bool> all = HoldsOnAllRanks(group_[rank].get(), rank != missing, token);
      ASSERT_EQ(all.status(), absl::OkStatus());
      answers[rank] = *all;
    });
    return answers;
  };
  EXPECT_EQ(held(/*missing=*/-1), std::vector<char>(size_, true));
  EXPECT_EQ(held(/*missing=*/size_ - 1), std::vector<char>(size_, false));
}

constexpr DType kSuiteTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};

// Both directions of a chain concurrently, as in a pipeline: one thread of a rank sends while another
// receives.
TEST_P(CommunicatorSuite, SendsArriveInOrder) {
  if (device_(0).is_cuda()) GTEST_SKIP() << "NCCL's communicators do one thing at a time";
  constexpr int kMessages = 3;
  for (const int64_t count : kSuiteCounts) {
    OnEveryRank(size_, [&](int rank) {
      Communicator* const own = group_[rank].get();
      const auto neighbors = [&](const std::function<void(int other)>& visit) {
        if (rank > 0) visit(rank - 1);
        if (rank + 1 < size_) visit(rank + 1);
      };
      std::thread sender([&] {
        for (int m = 0; m < kMessages; ++m) {
          neighbors([&](int other) {
            const at::Tensor values = OnDevice(Values(rank + m, count), at::kCPU);
            EXPECT_TRUE(own->Send(values.const_data_ptr(), count, DType::kFp32, other).ok());
          });
        }
      });
      for (int m = 0; m < kMessages; ++m) {
        neighbors([&](int other) {
          const at::Tensor values = OnDevice(std::vector<float>(count, -1), at::kCPU);
          EXPECT_TRUE(own->Receive(values.mutable_data_ptr(), count, DType::kFp32, other).ok());
          EXPECT_EQ(OnHost(values), Values(other + m, count)) << "message " << m << " from " << other;
        });
      }
      sender.join();
    });
  }
}

TEST_P(CommunicatorSuite, AbortUnblocksSendAndReceive) {
  if (device_(0).is_cuda() || size_ == 1) GTEST_SKIP() << "there is nobody to send to";
  OnEveryRank(size_, [&](int rank) {
    if (rank == 0) return group_[0]->Abort();
    float value = 0, sent = 1;
    EXPECT_EQ(group_[rank]->Receive(&value, 1, DType::kFp32, 0).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(group_[rank]->Receive(&value, 1, DType::kFp32, 0).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(group_[rank]->Send(&sent, 1, DType::kFp32, 0).code(), absl::StatusCode::kUnavailable);
  });
}

TEST_P(CommunicatorSuite, AllGather) {
  for (const DType dtype : kSuiteTypes) {
    for (const int64_t count : kSuiteCounts) {
      OnEveryRank(size_, [&](int rank) {
        const at::Device device = device_(rank);
        const at::Tensor buffer = OnDevice(std::vector<float>(size_ * count, -1), device, dtype);
        buffer.narrow(0, rank * count, count).copy_(OnDevice(Values(rank, count), device));
        ASSERT_EQ(group_[rank]->AllGather(buffer.mutable_data_ptr(), count, dtype), absl::OkStatus());
        std::vector<float> expected;
        for (int r = 0; r < size_; ++r) {
          for (const float value : Values(r, count)) expected.push_back(value);
        }
        EXPECT_EQ(OnHost(buffer), expected) << "rank " << rank << " count " << count << NameOf(dtype);
      });
    }
  }
}

TEST_P(CommunicatorSuite, ReduceScatter) {
  for (const DType wire : kSuiteTypes) {
    for (const int64_t count : kSuiteCounts) {
      OnEveryRank(size_, [&](int rank) {
        const at::Device device = device_(rank);
        const at::Tensor in = OnDevice(Values(rank, size_ * count), device, wire);
        const at::Tensor scratch = OnDevice(std::vector<float>(size_ * count, -1), device, wire);
        const at::Tensor out = OnDevice(std::vector<float>(count, -1), device);
        void* received = wire == DType::kFp32 ? nullptr : scratch.mutable_data_ptr();
        ASSERT_EQ(group_[rank]->ReduceScatter(in.mutable_data_ptr(), received, out.mutable_data_ptr<float>(),
                                              count, wire),
                  absl::OkStatus());
        EXPECT_EQ(OnHost(out), SumOfValues(size_, rank * count, count))
            << "rank " << rank << " count " << count << NameOf(wire);
      });
    }
  }
}

// 256 + 1 is not representable in bf16, nor 2048 + 1 in fp16: adding in the wire type would lose the ones.
TEST_P(CommunicatorSuite, ReduceScatterAddsInFp32) {
  constexpr int64_t kCount = 301;
  for (const DType wire : kSuiteTypes) {
    const float big = wire == DType::kBf16 ? 256 : 2048;
    OnEveryRank(size_, [&](int rank) {
      const at::Device device = device_(rank);
      const at::Tensor in = OnDevice(std::vector<float>(size_ * kCount, rank == 0 ? big : 1), device, wire);
      const at::Tensor scratch = OnDevice(std::vector<float>(size_ * kCount), device, wire);
      const at::Tensor out = OnDevice(std::vector<float>(kCount), device);
      ASSERT_EQ(group_[rank]->ReduceScatter(in.mutable_data_ptr(), scratch.mutable_data_ptr(),
                                            out.mutable_data_ptr<float>(), kCount, wire),
                absl::OkStatus());
      EXPECT_EQ(OnHost(out), std::vector<float>(kCount, big + static_cast<float>(size_ - 1))) << NameOf(wire);
    });
  }
}

TEST_P(CommunicatorSuite, ReduceScatterMayBeInPlace) {
  for (const int64_t count : kSuiteCounts) {
    OnEveryRank(size_, [&](int rank) {
      const at::Tensor in = OnDevice(Values(rank, size_ * count), device_(rank));
      float* data = in.mutable_data_ptr<float>();
      ASSERT_EQ(group_[rank]->ReduceScatter(data, nullptr, data + rank * count, count, DType::kFp32),
                absl::OkStatus());
      EXPECT_EQ(OnHost(in.narrow(0, rank * count, count)), SumOfValues(size_, rank * count, count))
          << "rank " << rank << " count " << count;
    });
  }
}

TEST_P(CommunicatorSuite, AllToAll) {
  for (const DType dtype : kSuiteTypes) {
    for (const int64_t count : kSuiteCounts) {
      OnEveryRank(size_, [&](int rank) {
        const at::Device device = device_(rank);
        const at::Tensor in = OnDevice(Values(rank, size_ * count), device, dtype);
        const at::Tensor out = OnDevice(std::vector<float>(size_ * count, -1), device, dtype);
        ASSERT_EQ(group_[rank]->AllToAll(in.const_data_ptr(), out.mutable_data_ptr(), count, dtype),
                  absl::OkStatus());
        for (int r = 0; r < size_; ++r) {
          if (r == rank) continue;
          std::vector<float> expected;
          for (int64_t i = 0; i < count; ++i) expected.push_back(Value(r, rank * count + i));
          EXPECT_EQ(OnHost(out.narrow(0, r * count, count)), expected)
              << "rank " << rank << " count " << count << NameOf(dtype);
        }
        EXPECT_EQ(OnHost(in), Values(rank, size_ * count));  // The sent data is unchanged.
      });
    }
  }
}

TEST_P(CommunicatorSuite, Broadcast) {
  for (const DType dtype : kSuiteTypes) {
    for (const int64_t count : kSuiteCounts) {
      OnEveryRank(size_, [&](int rank) {
        const at::Device device = device_(rank);
        for (int root = 0; root < size_; ++root) {
          const at::Tensor buffer = OnDevice(Values(rank, count), device, dtype);
          ASSERT_EQ(group_[rank]->Broadcast(buffer.mutable_data_ptr(), count, dtype, root), absl::OkStatus());
          EXPECT_EQ(OnHost(buffer), Values(root, count))
              << "rank " << rank << " root " << root << " count " << count << NameOf(dtype);
        }
      });
    }
  }
}

TEST_P(CommunicatorSuite, AllReduce) {
  for (const int64_t count : kSuiteCounts) {
    OnEveryRank(size_, [&](int rank) {
      const at::Tensor buffer = OnDevice(Values(rank, count), device_(rank));
      ASSERT_EQ(group_[rank]->AllReduce(buffer.mutable_data_ptr<float>(), count), absl::OkStatus());
      EXPECT_EQ(OnHost(buffer), SumOfValues(size_, 0, count)) << "rank " << rank << " count " << count;
    });
  }
}

TEST_P(CommunicatorSuite, BarrierWaitsForAllRanks) {
  std::atomic<int> came{0};
  OnEveryRank(size_, [&](int rank) {
    device_(rank);
    for (int round = 1; round <= 10; ++round) {
      ++came;
      ASSERT_EQ(group_[rank]->Barrier(), absl::OkStatus());
      EXPECT_GE(came, round * size_);
      ASSERT_EQ(group_[rank]->Barrier(), absl::OkStatus());
    }
  });
}

TEST_P(CommunicatorSuite, MixedOperations) {
  OnEveryRank(size_, [&](int rank) {
    const at::Device device = device_(rank);
    for (int round = 0; round < 5; ++round) {
      const at::Tensor a = OnDevice(Values(rank, 3), device);
      const at::Tensor b = OnDevice(Values(rank, 5 * size_), device);
      ASSERT_EQ(group_[rank]->AllReduce(a.mutable_data_ptr<float>(), 3), absl::OkStatus());
      float* data = b.mutable_data_ptr<float>();
      ASSERT_EQ(group_[rank]->ReduceScatter(data, nullptr, data + rank * 5, 5, DType::kFp32),
                absl::OkStatus());
      ASSERT_EQ(group_[rank]->AllGather(data, 5, DType::kFp32), absl::OkStatus());
      EXPECT_EQ(OnHost(a), SumOfValues(size_, 0, 3));
      EXPECT_EQ(OnHost(b), SumOfValues(size_, 0, 5 * size_));
    }
  });
}

TEST_P(CommunicatorSuite, AbortUnblocksPeers) {
  if (size_ == 1) GTEST_SKIP() << "nobody to wait for";
  if (!abort_reaches_peers_) GTEST_SKIP() << "this transport's ranks are aborted each by their own process";
  OnEveryRank(size_, [&](int rank) {
    device_(rank);
    ASSERT_EQ(group_[rank]->Barrier(), absl::OkStatus());
    if (rank == size_ - 1) {
      group_[rank]->Abort();
    } else {
      EXPECT_EQ(group_[rank]->Barrier().code(), absl::StatusCode::kUnavailable);
    }
    // The error is sticky, for the aborting rank too.
    EXPECT_EQ(group_[rank]->Barrier().code(), absl::StatusCode::kUnavailable);
  });
}

TEST_P(CommunicatorSuite, AbortFromAnotherThread) {
  if (size_ == 1) GTEST_SKIP() << "nobody to wait for";
  std::thread waiter([&] {  // Rank 1 never arrives.
    device_(0);
    EXPECT_EQ(group_[0]->Barrier().code(), absl::StatusCode::kUnavailable);
  });
  group_[0]->Abort();  // Before, during or after the start of the wait.
  waiter.join();
  for (const auto& rank : group_) rank->Abort();
}

}  // namespace fsdpd
