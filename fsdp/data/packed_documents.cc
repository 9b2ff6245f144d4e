#include "fsdp/data/packed_documents.h"

#include <absl/strings/str_format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

constexpr int64_t kFewestTokens = 2;  // An input and its target.
constexpr int64_t kReadTokens = int64_t{1} << 18;

}  // namespace

const char* HandlingOf(TooLong too_long) {
  if (too_long == TooLong::kTruncate) return "truncated";
  return too_long == TooLong::kSplit ? "split" : "dropped";
}

// The documents to pack, in file order.
struct PackedDocuments::Found {
  std::vector<int64_t> begins;
  std::vector<int32_t> tokens;

  int64_t count() const { return static_cast<int64_t>(begins.size()); }
  void Add(int64_t begin, int64_t end) {
    if (end - begin < kFewestTokens) return;
    begins.push_back(begin);
    tokens.push_back(static_cast<int32_t>(end - begin));
  }
};

absl::StatusOr<PackedDocuments> PackedDocuments::Make(const TokenFile& file, const PackingOptions& options) {
  FSDPD_CHECK(options.sample_tokens >= kFewestTokens &&
              options.sample_tokens <= std::numeric_limits<int32_t>::max());
  PackedDocuments packed(options);
  FSDPD_ASSIGN_OR_RETURN(const Found found, packed.Find(file));
  if (found.count() == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: no document to train on (got %d documents, %d of them longer than a sample of %d "
        "tokens; want at least one of 2 tokens or more); check data.document_end_token and "
        "data.too_long",
        file.path(), packed.documents_, packed.too_long_, options.sample_tokens));
  }
  packed.Pack(found);
  return packed;
}

absl::StatusOr<PackedDocuments::Found> PackedDocuments::Find(const TokenFile& file) {
  Found found;
  std::vector<int64_t> ids(std::min(kReadTokens, file.tokens()));
  int64_t begin = 0;
  for (int64_t read = 0; read < file.tokens(); read += kReadTokens) {
    const int64_t count = std::min(kReadTokens, file.tokens() - read);
    FSDPD_RETURN_IF_ERROR(file.Read(read, count, ids.data()));
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] != options_.end_token) continue;
      Add(begin, read + i + 1, &found);
      begin = read + i + 1;
    }
  }
  // A file of one document without its end is more likely a wrong token.
  if (begin == 0 && file.tokens() > options_.sample_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: no document ends (none of the %d tokens is %d); write the tokenizer's end-of-document id as "
        "data.document_end_token, or packing: stream",
        file.path(), file.tokens(), options_.end_token));
  }
  Add(begin, file.tokens(), &found);
  return found;
}

void PackedDocuments::Add(int64_t begin, int64_t end, Found* found) {
  if (begin == end) return;  // The file ends with an end token.
  ++documents_;
  const int64_t most = options_.sample_tokens;
  if (end - begin <= most) return found->Add(begin, end);
  ++too_long_;
  if (options_.too_long == TooLong::kTruncate) found->Add(begin, begin + most);
  if (options_.too_long != TooLong::kSplit) return;
  // Parts overlap in one token: the last target of a part is the first input of the next.
  for (; begin < end - 1; begin += most - 1) found->Add(begin, std::min(end, begin + most));
}

void PackedDocuments::Pack(const Found& found) {
  begins_.reserve(found.count());
  tokens_.reserve(found.count());
  for (int64_t first = 0; first < found.count(); first += kGroup) {
    std::vector<int64_t> group(std::min(kGroup, found.count() - first));
    std::iota(group.begin(), group.end(), first);
    if (options_.seed.has_value()) {
      for (int64_t& document : group) document = Permute(*options_.seed, document, found.count());
    }
    PackGroup(found, std::move(group));
  }
  packed_tokens_ = std::accumulate(tokens_.begin(), tokens_.end(), int64_t{0});
}

void PackedDocuments::PackGroup(const Found& found, std::vector<int64_t> group) {
  std::stable_sort(group.begin(), group.end(),
                   [&](int64_t a, int64_t b) { return found.tokens[a] > found.tokens[b]; });
  std::vector<std::vector<int64_t>> samples;
  std::set<std::pair<int64_t, size_t>> open;  // Free tokens of samples, and their index.
  for (const int64_t document : group) {
    const int64_t tokens = found.tokens[document];
    int64_t free = options_.sample_tokens;
    size_t sample = samples.size();
    const auto fullest = open.lower_bound({tokens, 0});
    if (fullest == open.end()) {
      samples.emplace_back();
    } else {
      std::tie(free, sample) = *fullest;
      open.erase(fullest);
    }
    samples[sample].push_back(document);
    if (free - tokens >= kFewestTokens) open.insert({free - tokens, sample});
  }
  // Otherwise a part of the samples, as in an evaluation, would have only the longest documents.
  if (!options_.seed.has_value()) {
    const auto first = [](const std::vector<int64_t>& sample) {
      return *std::min_element(sample.begin(), sample.end());
    };
    std::sort(samples.begin(), samples.end(),
              [&](const auto& a, const auto& b) { return first(a) < first(b); });
  }
  for (const std::vector<int64_t>& sample : samples) {
    for (const int64_t document : sample) {
      begins_.push_back(found.begins[document]);
      tokens_.push_back(found.tokens[document]);
    }
    sample_ends_.push_back(static_cast<int64_t>(begins_.size()));
  }
}

std::vector<DocumentRange> PackedDocuments::DocumentsOf(int64_t sample) const {
  FSDPD_CHECK(sample >= 0 && sample < samples());
  std::vector<DocumentRange> documents;
  for (int64_t i = sample == 0 ? 0 : sample_ends_[sample - 1]; i < sample_ends_[sample]; ++i)
    documents.push_back({begins_[i], tokens_[i]});
  return documents;
}

uint64_t PackedDocuments::Hash() const {
  uint64_t hash = XXH64(begins_.data(), begins_.size() * sizeof(begins_[0]), /*seed=*/0);
  hash = XXH64(tokens_.data(), tokens_.size() * sizeof(tokens_[0]), hash);
  return XXH64(sample_ends_.data(), sample_ends_.size() * sizeof(sample_ends_[0]), hash);
}

double PackedDocuments::padding() const {
  const double capacity = static_cast<double>(samples()) * static_cast<double>(options_.sample_tokens);
  return 1 - static_cast<double>(packed_tokens_) / capacity;
}

}  // namespace fsdpd
