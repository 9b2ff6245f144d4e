#include "fsdp/checkpoint/compare.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/each_tensor.h"
#include "fsdp/checkpoint/number_cast.h"
#include "fsdp/checkpoint/open_store.h"

namespace fsdpd {
namespace {

std::string TextOf(const StoredTensor& tensor) {
  return absl::StrCat(tensor.type->name, " ", ShapeText(tensor.shape));
}

// What each side has under a name; -1: no tensor.
struct Pair {
  int64_t first = -1, second = -1;
  std::string first_value, second_value;
};

using Pairs = std::map<std::string, Pair>;

absl::Status AddSide(const TensorReader& reader, bool is_first, Pairs* pairs) {
  for (size_t i = 0; i < reader.tensors().size(); ++i) {
    Pair& pair = (*pairs)[reader.tensors()[i].name];
    (is_first ? pair.first : pair.second) = static_cast<int64_t>(i);
  }
  const auto* dcp = dynamic_cast<const DcpTensorReader*>(&reader);
  if (dcp == nullptr) return absl::OkStatus();
  for (const DcpValue& value : dcp->dcp().index().values) {
    const absl::StatusOr<Pickle> pickle = dcp->dcp().ReadValue(value);
    if (!pickle.ok() && !absl::IsUnimplemented(pickle.status())) return pickle.status();
    Pair& pair = (*pairs)[value.name];
    (is_first ? pair.first_value : pair.second_value) =
        pickle.ok() ? DescribePickled(pickle->root()) : "not read";
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<char[]>> Numbers(const TensorReader& reader, int64_t tensor) {
  std::unique_ptr<char[]> numbers(new char[reader.tensors()[tensor].bytes]);
  FSDPD_RETURN_IF_ERROR(reader.Read(tensor, numbers.get()));
  return numbers;
}

void CompareNumbers(const StoredTensor& a, const char* first, const StoredTensor& b, const char* second,
                    Difference* difference) {
  double largest = 0;
  for (int64_t i = 0; i < a.numbers(); ++i) {
    const double x = NumberAt(*a.type, first, i), y = NumberAt(*b.type, second, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double apart = std::abs(x - y);
    largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
    ++difference->numbers;
  }
  difference->largest = largest;
}

absl::Status Compare(const TensorReader& first, const TensorReader& second, const Pair& pair,
                     Difference* difference) {
  const StoredTensor* a = pair.first < 0 ? nullptr : &first.tensors()[pair.first];
  const StoredTensor* b = pair.second < 0 ? nullptr : &second.tensors()[pair.second];
  difference->first = a == nullptr ? pair.first_value : TextOf(*a);
  difference->second = b == nullptr ? pair.second_value : TextOf(*b);
  if (a == nullptr || b == nullptr || a->shape != b->shape) return absl::OkStatus();
  const bool same_type = a->type == b->type;
  if (!same_type && (!CanCompare(*a->type) || !CanCompare(*b->type))) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<char[]> x, Numbers(first, pair.first));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<char[]> y, Numbers(second, pair.second));
  if (same_type && std::memcmp(x.get(), y.get(), a->bytes) == 0) return absl::OkStatus();
  if (CanCompare(*a->type)) {
    CompareNumbers(*a, x.get(), *b, y.get(), difference);
  } else {
    difference->numbers = -1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Comparison> CompareStores(const std::string& first, const std::string& second, int threads,
                                         const std::function<bool()>& stopped) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> a, OpenStore(first));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> b, OpenStore(second));
  Pairs pairs;
  FSDPD_RETURN_IF_ERROR(AddSide(*a, true, &pairs));
  FSDPD_RETURN_IF_ERROR(AddSide(*b, false, &pairs));
  std::vector<Difference> found;
  std::vector<const Pair*> of;
  for (const auto& [name, pair] : pairs) {
    found.push_back({name, "", "", std::nullopt, 0});
    of.push_back(&pair);
  }
  FSDPD_RETURN_IF_ERROR(ForEachTensor(found.size(), threads, stopped,
                                      [&](size_t i) { return Compare(*a, *b, *of[i], &found[i]); }));
  Comparison comparison;
  for (Difference& difference : found) {
    if (difference.first == difference.second && difference.numbers == 0) {
      ++comparison.equal;
    } else {
      comparison.differences.push_back(std::move(difference));
    }
  }
  return comparison;
}

}  // namespace fsdpd
