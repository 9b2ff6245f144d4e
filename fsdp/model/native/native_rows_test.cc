#include "fsdp/model/native/native_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kExperts = 5;

std::vector<int32_t> ValuesOf(const at::Tensor& of) {
  return {of.const_data_ptr<int32_t>(), of.const_data_ptr<int32_t>() + of.numel()};
}

// Some of each, all to one, and some experts without.
std::vector<at::Tensor> Choices() {
  return {at::randint(kExperts, {12, 2}, at::kLong), at::full({9, 1}, 3, at::kLong),
          at::tensor({4, 0, 4, 0}, at::kLong).view({2, 2}), at::zeros({0, 2}, at::kLong)};
}

TEST(NativeRows, AnExpertsRowsAreItsChoicesInTheirOrderAndThenNone) {
  for (const at::Tensor& chosen : Choices()) {
    for (const int64_t step : {1, 2, 8}) {
      const RowPlaces places = PlaceRows(chosen, kExperts, step);
      const std::vector<int32_t> order = ValuesOf(places.order), of_choice = ValuesOf(places.of_choice),
                                 ends = ValuesOf(places.ends);
      std::vector<int32_t> want(order.size(), -1);
      int32_t row = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        EXPECT_EQ(row % step, 0);
        const int32_t begin = row;
        for (int64_t c = 0; c < chosen.numel(); ++c) {
          if (chosen.flatten()[c].item<int64_t>() != e) continue;
          EXPECT_EQ(of_choice[c], row);
          want[row++] = static_cast<int32_t>(c);
        }
        if (step > 1) row = std::max<int32_t>(begin + step, (row + step - 1) / step * step);
        EXPECT_EQ(ends[e], row);
      }
      EXPECT_EQ(order, want);
      EXPECT_LE(row, order.size());
      if (step == 1) EXPECT_EQ(order.size(), chosen.numel());
    }
  }
}

TEST(NativeRows, RowsOfNoChoiceAreZeroAndCountForNobody) {
  const at::Tensor chosen = Choices()[0], x = at::randn({12, 3});
  for (const int64_t step : {1, 8}) {
    const RowPlaces places = PlaceRows(chosen, kExperts, step);
    const at::Tensor rows = GatherRows(x, places.order, /*divisor=*/2);
    for (int64_t r = 0; r < rows.size(0); ++r) {
      const auto choice = places.order[r].item<int64_t>();
      EXPECT_TRUE(rows[r].equal(choice < 0 ? at::zeros({3}) : x[choice / 2])) << r;
    }
    EXPECT_LT((SumOfRows({rows}, places.of_choice, 2) - 2 * x).abs().max().item<double>(), 1e-6);
    EXPECT_LT((SumOfRows({rows, rows}, places.of_choice, 2) - 4 * x).abs().max().item<double>(), 2e-6);
    const at::Tensor with = SumOfRows({rows}, places.of_choice, 2, x.to(at::kBFloat16));
    EXPECT_EQ(with.scalar_type(), at::kBFloat16);
    EXPECT_LT((with.to(at::kFloat) - 3 * x).norm().item<double>(), 0.01 * x.norm().item<double>());
  }
}

}  // namespace
}  // namespace fsdpd
