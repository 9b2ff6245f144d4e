#include "fsdp/data/batch_reader.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 2, kSequence = 3, kMicroBatches = 2;

void Fill(const at::Tensor& tensor, int64_t value) {
  // Only the elements that are compared: one test has large tensors.
  std::fill_n(tensor.mutable_data_ptr<int64_t>(), kRows * kSequence, value);
}

// Token of a step and a micro-batch; its target is one more.
int64_t TokenOf(int64_t step, int64_t micro_batch) { return 10 * step + micro_batch; }

// A source of batches that can be blocked before any step. Its thread may outlive a test.
class Source : public std::enable_shared_from_this<Source> {
 public:
  BatchReaderOptions Options(int64_t first, int64_t last, int64_t held = 1) {
    BatchReaderOptions options;
    options.read = [source = shared_from_this()](int64_t step, int64_t m, Batch* to) {
      return source->Read(step, m, to);
    };
    options.first = first;
    options.last = last;
    options.micro_batches = kMicroBatches;
    options.rows = kRows;
    options.sequence = kSequence;
    options.held = held;
    options.clock = &clock;
    return options;
  }

  void HoldBefore(int64_t step) {
    MutexLock lock(&mutex_);
    held_before_ = step;
  }
  void Release() {
    HoldBefore(0);
    changed_.SignalAll();
  }

  // Blocks until the reader has started the step.
  void AwaitBegun(int64_t step) {
    MutexLock lock(&mutex_);
    while (begun_ < step) changed_.Wait(&mutex_);
  }
  int64_t begun() {
    MutexLock lock(&mutex_);
    return begun_;
  }

  FakeClock clock;
  std::atomic<int64_t> fails_at{0};

 private:
  absl::Status Read(int64_t step, int64_t m, Batch* to) {
    {
      MutexLock lock(&mutex_);
      begun_ = step;
      changed_.SignalAll();
      while (held_before_ == step) changed_.Wait(&mutex_);
    }
    if (step == fails_at) return absl::DataLossError("torn");
    Fill(to->tokens, TokenOf(step, m));
    Fill(to->targets, TokenOf(step, m) + 1);
    to->counted = step;
    return absl::OkStatus();
  }

  Mutex mutex_;
  CondVar changed_;
  int64_t held_before_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::unique_ptr<BatchReader> Start(BatchReaderOptions options) {
  auto reader = BatchReader::Make(std::move(options));
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

absl::Status NeverInterrupted() { return absl::OkStatus(); }

void ExpectStep(const StepBatches& batches, int64_t step) {
  ASSERT_EQ(batches.batches().size(), static_cast<size_t>(kMicroBatches));
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    const Batch& batch = batches.batches()[m];
    EXPECT_EQ(batch.counted, step);
    for (int64_t i = 0; i < kRows * kSequence; ++i) {
      EXPECT_EQ(batch.tokens.const_data_ptr<int64_t>()[i], TokenOf(step, m));
      EXPECT_EQ(batch.targets.const_data_ptr<int64_t>()[i], TokenOf(step, m) + 1);
    }
  }
}

TEST(BatchReader, ReturnsBatchesInOrder) {
  const auto source = std::make_shared<Source>();
  const auto reader = Start(source->Options(5, 40));
  for (int64_t step = 5; step <= 40; ++step) {
    const auto batches = reader->Next(step, NeverInterrupted);
    ASSERT_TRUE(batches.ok()) << batches.status();
    ExpectStep(*batches, step);
  }
  EXPECT_EQ(source->begun(), 40);
}

TEST(BatchReader, AllocatesPositionsAndBoundsForDocuments) {
  const auto source = std::make_shared<Source>();
  BatchReaderOptions options = source->Options(1, 20, /*held=*/2);
  options.documents = true;
  options.read = [](int64_t step, int64_t m, Batch* to) {
    Fill(to->tokens, TokenOf(step, m));
    Fill(to->targets, TokenOf(step, m) + 1);
    Fill(to->positions, step + 1000);
    EXPECT_EQ(to->documents.bounds.numel(), kRows * kSequence + 1);
    to->documents.bounds.fill_(step);
    to->documents.starts.assign(1, step);
    to->counted = step;
    return absl::OkStatus();
  };
  const auto reader = Start(std::move(options));
  for (int64_t step = 1; step <= 20; ++step) {
    const auto batches = reader->Next(step, NeverInterrupted);
    ASSERT_TRUE(batches.ok()) << batches.status();
    ExpectStep(*batches, step);
    for (const Batch& batch : batches->batches()) {
      EXPECT_TRUE(batch.positions.eq(step + 1000).all().item<bool>());
      EXPECT_TRUE(batch.documents.bounds.eq(step).all().item<bool>());
      EXPECT_EQ(batch.documents.starts, std::vector<int64_t>{step});
    }
  }
}

TEST(BatchReader, ReadsNothingWithoutSteps) {
  const auto source = std::make_shared<Source>();
  Start(source->Options(5, 4)).reset();
  EXPECT_EQ(source->begun(), 0);
}

// If held memory were reused, these batches would have another step's numbers by then.
TEST(BatchReader, DoesNotReuseHeldBatches) {
  constexpr int64_t kHeld = 3, kPlaces = kHeld + BatchReader::kMostAhead;
  const auto source = std::make_shared<Source>();
  const auto reader = Start(source->Options(1, 100, kHeld));
  std::vector<StepBatches> held;
  for (int64_t step = 1; step <= kHeld; ++step) held.push_back(*reader->Next(step, NeverInterrupted));
  source->AwaitBegun(kPlaces);
  for (int64_t step = 1; step <= kHeld; ++step) ExpectStep(held[step - 1], step);
  // As many as there are places, plus one for the one that was returned.
  held.erase(held.begin());
  source->AwaitBegun(kPlaces + 1);
  for (int64_t step = 2; step <= kHeld; ++step) ExpectStep(held[step - 2], step);
  for (int64_t step = kHeld + 1; step <= 100; ++step) {
    held.push_back(*reader->Next(step, NeverInterrupted));
    ExpectStep(held.back(), step);
    ExpectStep(held.front(), step - kHeld + 1);
    held.erase(held.begin());
  }
}

TEST(BatchReader, LimitsPrefetchedSteps) {
  const auto source = std::make_shared<Source>();
  const auto reader = Start(source->Options(1, 100, /*held=*/1));
  constexpr int64_t kPlaces = 1 + BatchReader::kMostAhead;
  for (int64_t step = 1; step <= 50; ++step) {
    const auto batches = reader->Next(step, NeverInterrupted);
    ASSERT_TRUE(batches.ok());
    EXPECT_LT(source->begun(), step + kPlaces);
  }
}

TEST(BatchReader, PrefetchesOneStepIfBatchesAreLarge) {
  const auto source = std::make_shared<Source>();
  BatchReaderOptions options = source->Options(1, 4);
  options.sequence = BatchReader::kAheadBytes / (2 * kRows * kMicroBatches * 8) + 1;
  const auto reader = Start(std::move(options));
  source->AwaitBegun(2);
  const auto batches = reader->Next(1, NeverInterrupted);
  ASSERT_TRUE(batches.ok());
  EXPECT_EQ(source->begun(), 2);
  EXPECT_EQ(batches->batches()[1].targets.const_data_ptr<int64_t>()[0], TokenOf(1, 1) + 1);
}

TEST(BatchReader, ReturnsErrorForItsStep) {
  const auto source = std::make_shared<Source>();
  source->fails_at = 4;
  const auto reader = Start(source->Options(1, 9));
  source->AwaitBegun(4);
  for (int64_t step = 1; step <= 3; ++step) ExpectStep(*reader->Next(step, NeverInterrupted), step);
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(reader->Next(4, NeverInterrupted).status(), absl::DataLossError("torn"));
  EXPECT_EQ(source->begun(), 4);
}

TEST(BatchReader, ReportsWaitTime) {
  const auto source = std::make_shared<Source>();
  source->HoldBefore(3);
  const auto reader = Start(source->Options(1, 9));
  source->AwaitBegun(3);
  for (int64_t step = 1; step <= 2; ++step)
    EXPECT_EQ(reader->Next(step, NeverInterrupted)->waited_seconds(), 0) << step;
  bool asked = false;
  const auto batches = reader->Next(3, [&] {
    if (!std::exchange(asked, true)) {
      source->clock.Advance(absl::Seconds(3));
      source->Release();
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(batches.ok());
  EXPECT_EQ(batches->waited_seconds(), 3);
  ExpectStep(*batches, 3);
}

TEST(BatchReader, LogsLongWaitOnce) {
  const auto source = std::make_shared<Source>();
  source->HoldBefore(1);
  const auto reader = Start(source->Options(1, 9));
  int asked = 0;
  ::testing::internal::CaptureStderr();
  const auto batches = reader->Next(1, [&] {
    source->clock.Advance(absl::Seconds(6));
    if (++asked == 4) source->Release();
    return absl::OkStatus();
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("step=1 longer_than=10s"));
  EXPECT_EQ(log.find("waits"), log.rfind("waits"));
  EXPECT_TRUE(batches.ok());
}

TEST(BatchReader, NextCanBeRetriedAfterInterruption) {
  const auto source = std::make_shared<Source>();
  source->HoldBefore(1);
  const auto reader = Start(source->Options(1, 9));
  const auto stopped = reader->Next(1, [] { return absl::CancelledError("asked to stop"); });
  EXPECT_EQ(stopped.status(), absl::CancelledError("asked to stop"));
  source->Release();
  ExpectStep(*reader->Next(1, NeverInterrupted), 1);
}

TEST(BatchReader, CanBeDestroyedAtAnyTime) {
  for (int64_t step = 0; step <= 20; ++step) {
    const auto source = std::make_shared<Source>();
    std::optional<StepBatches> last;
    {
      const auto reader = Start(source->Options(1, 1000));
      for (int64_t s = 1; s <= step; ++s) last = *reader->Next(s, NeverInterrupted);
    }
    if (step > 0) ExpectStep(*last, step);  // Outlives the reader.
  }
}

// Like an unreachable file server: such a read cannot be interrupted, but the rank must still be able to
// exit.
TEST(BatchReader, BlockedReadDoesNotBlockDestruction) {
  std::promise<void> begun, go_on;
  auto over = std::make_shared<std::promise<void>>();  // Broken when its last owner is destroyed.
  std::future<void> is_over = over->get_future();
  const auto source = std::make_shared<Source>();
  BatchReaderOptions options = source->Options(1, 9);
  options.clock = Clock::Real();
  options.read = [&begun, over = std::move(over), may = go_on.get_future().share()](int64_t, int64_t,
                                                                                    Batch* to) {
    begun.set_value();
    may.wait();
    Fill(to->tokens, 7);
    return absl::OkStatus();
  };
  auto reader = Start(std::move(options));
  begun.get_future().wait();
  reader.reset();
  EXPECT_EQ(is_over.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  go_on.set_value();
  is_over.wait();  // The thread wrote to valid memory, and has released it.
}

}  // namespace
}  // namespace fsdpd
