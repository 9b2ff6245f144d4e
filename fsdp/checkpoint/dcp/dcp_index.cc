#include "fsdp/checkpoint/dcp/dcp_index.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

// Limit on compared pairs of chunks over all tensors: takes seconds. Chunks that are not contiguous runs come
// from tensor parallelism.
constexpr int64_t kMaxPairs = 400'000'000;
constexpr size_t kMaxViolations = 1000;

bool Within(const Rectangle& chunk, const std::vector<int64_t>& shape) {
  if (chunk.offsets.size() != shape.size() || chunk.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (chunk.offsets[d] < 0 || chunk.sizes[d] < 0 || chunk.sizes[d] > shape[d] ||
        chunk.offsets[d] > shape[d] - chunk.sizes[d]) {
      return false;
    }
  }
  return true;
}

// Whether its elements are contiguous in the tensor: a range of one dimension, with all later dimensions
// complete.
bool IsRun(const Rectangle& chunk, const std::vector<int64_t>& shape) {
  size_t d = 0;
  while (d < shape.size() && chunk.sizes[d] == 1) ++d;
  for (++d; d < shape.size(); ++d) {
    if (chunk.sizes[d] != shape[d]) return false;
  }
  return true;
}

int64_t FirstOf(const Rectangle& chunk, const std::vector<int64_t>& shape) {
  int64_t first = 0;
  for (size_t d = 0; d < shape.size(); ++d) first = first * shape[d] + chunk.offsets[d];
  return first;
}

std::string RectangleText(const Rectangle& at) {
  return absl::StrCat(ShapeText(at.sizes), " at ", ShapeText(at.offsets));
}

std::string OverlapText(const Rectangle& a, const Rectangle& b) {
  return absl::StrCat("chunks ", RectangleText(a), " and ", RectangleText(b), " overlap");
}

// The first problem among the chunks of a tensor, which are all within it; empty if they are disjoint.
std::string OverlapIn(const std::vector<int64_t>& shape, std::vector<const Rectangle*> chunks,
                      int64_t* pairs_left) {
  const bool runs =
      std::all_of(chunks.begin(), chunks.end(), [&](const Rectangle* chunk) { return IsRun(*chunk, shape); });
  if (runs) {
    std::sort(chunks.begin(), chunks.end(), [&](const Rectangle* a, const Rectangle* b) {
      return FirstOf(*a, shape) < FirstOf(*b, shape);
    });
    for (size_t i = 1; i < chunks.size(); ++i) {
      if (FirstOf(*chunks[i], shape) < FirstOf(*chunks[i - 1], shape) + chunks[i - 1]->elements()) {
        return OverlapText(*chunks[i - 1], *chunks[i]);
      }
    }
    return "";
  }
  // Groups chunks with common rows; for column shards, one from each rank with a shard.
  const auto row = [](const Rectangle* chunk) { return chunk->offsets[0]; };
  std::sort(chunks.begin(), chunks.end(),
            [&](const Rectangle* a, const Rectangle* b) { return row(a) < row(b); });
  std::vector<size_t> ends;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto end = std::partition_point(
        chunks.begin() + static_cast<std::ptrdiff_t>(i), chunks.end(),
        [&](const Rectangle* each) { return row(each) < row(chunks[i]) + chunks[i]->sizes[0]; });
    ends.push_back(static_cast<size_t>(end - chunks.begin()));
    *pairs_left -= static_cast<int64_t>(ends[i] - i - 1);
  }
  if (*pairs_left < 0) {
    *pairs_left = 0;
    return absl::StrCat("has ", chunks.size(), " non-contiguous chunks, too many to check for overlaps");
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t j = i + 1; j < ends[i]; ++j) {
      if (Overlap(*chunks[i], *chunks[j])) return OverlapText(*chunks[i], *chunks[j]);
    }
  }
  return "";
}

class Checker {
 public:
  explicit Checker(const DcpIndex& index) : index_(index) {}

  DcpViolations Run() {
    for (const std::string& file : index_.files) {
      if (!IsPlainFileName(file)) violations_.Add(file, "is not a plain file name");
    }
    for (const DcpTensor& tensor : index_.tensors) CheckTensor(tensor);
    for (const DcpValue& value : index_.values) CheckPlace(value.name, value.place);
    CheckApart();
    return std::move(violations_);
  }

 private:
  void CheckTensor(const DcpTensor& tensor) {
    if (tensor.type == nullptr) {
      return violations_.Add(tensor.name, absl::StrCat("unsupported dtype ", tensor.type_name));
    }
    const absl::StatusOr<int64_t> bytes = BytesOf(*tensor.type, tensor.shape);
    if (!bytes.ok())
      return violations_.Add(tensor.name, absl::StrCat("invalid shape ", ShapeText(tensor.shape)));
    std::vector<const Rectangle*> filled;
    int64_t stored = 0;
    bool all_within = true;
    for (const DcpChunk& chunk : tensor.chunks) {
      if (!Within(chunk.at, tensor.shape)) {
        all_within = false;
        violations_.Add(tensor.name,
                        absl::StrCat("chunk ", RectangleText(chunk.at), " is outside the tensor's shape ",
                                     ShapeText(tensor.shape)));
      } else if (!IsEmpty(chunk.at)) {
        CheckPlace(tensor.name, chunk.place);
        filled.push_back(&chunk.at);
        // Overlapping chunks could have more elements in total than 63 bits can count.
        if (__builtin_add_overflow(stored, chunk.at.elements(), &stored))
          return violations_.Add(tensor.name, "has too many chunks");
      }
    }
    if (!all_within) return;
    const std::string overlap = OverlapIn(tensor.shape, std::move(filled), &pairs_left_);
    if (!overlap.empty()) return violations_.Add(tensor.name, overlap);
    const int64_t numbers = *bytes / tensor.type->bytes;
    if (stored != numbers) {
      violations_.Add(tensor.name, absl::StrCat("is incomplete: ", numbers - stored, " of ", numbers,
                                                " elements are in no chunk"));
    }
  }

  void CheckPlace(const std::string& name, const DcpPlace& place) {
    if (place.file < 0) return violations_.Add(name, "has a chunk without a file");
    if (!place.transform.empty()) {
      return violations_.Add(name, absl::StrCat("unsupported transform '", place.transform, "'"));
    }
    if (place.begin < 0 || place.bytes <= 0 || place.bytes > INT64_MAX - place.begin) {
      return violations_.Add(
          name, absl::StrCat("invalid position (", place.bytes, " bytes at byte ", place.begin, ")"));
    }
    places_.push_back({&place, &name});
  }

  void CheckApart() {
    std::sort(places_.begin(), places_.end(), [](const Placed& a, const Placed& b) {
      return std::tie(a.place->file, a.place->begin) < std::tie(b.place->file, b.place->begin);
    });
    const Placed* last = nullptr;  // The earlier record with the highest end.
    for (const Placed& placed : places_) {
      const DcpPlace& place = *placed.place;
      if (last == nullptr || place.file != last->place->file) {
        last = &placed;
        continue;
      }
      if (place.begin < last->place->begin + last->place->bytes) {
        violations_.Add(*placed.name,
                        absl::StrCat("record at byte ", place.begin, " of ", index_.files[place.file],
                                     " overlaps a record of ", *last->name));
      }
      if (place.begin + place.bytes > last->place->begin + last->place->bytes) last = &placed;
    }
  }

  struct Placed {
    const DcpPlace* place;
    const std::string* name;
  };

  const DcpIndex& index_;
  int64_t pairs_left_ = kMaxPairs;
  std::vector<Placed> places_;
  DcpViolations violations_;
};

}  // namespace

bool DcpPlace::operator==(const DcpPlace& other) const {
  return std::tie(file, begin, bytes, transform) ==
         std::tie(other.file, other.begin, other.bytes, other.transform);
}

void DcpViolations::Add(const std::string& where, const std::string& what) {
  if (violations_.size() < kMaxViolations) {
    violations_.push_back({Escaped(where), Escaped(what)});
  } else {
    ++left_out_;
  }
}

void DcpViolations::Add(const DcpViolations& others) {
  const auto before = static_cast<std::ptrdiff_t>(violations_.size());
  for (const DcpViolation& violation : others) {
    const auto is_it = [&](const DcpViolation& told) {
      return told.where == violation.where && told.what == violation.what;
    };
    if (std::none_of(violations_.begin(), violations_.begin() + before, is_it))
      Add(violation.where, violation.what);
  }
  left_out_ += others.left_out_;
}

DcpViolations CheckIndex(const DcpIndex& index) { return Checker(index).Run(); }

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool Overlap(const Rectangle& a, const Rectangle& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) return false;
  }
  return true;
}

bool IsEmpty(const Rectangle& at) { return std::count(at.sizes.begin(), at.sizes.end(), 0) > 0; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace fsdpd
