// Fuzz test of every parser of a checkpoint with damaged and random bytes: each must be parsed or rejected,
// without any other effect (nightly runs add sanitizers). Parsed results are traversed. The printed seed
// reproduces a case.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/seeds.h"
#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/format/zip.h"
#include "fsdp/checkpoint/hf/safetensors.h"

namespace fsdpd {
namespace {

// Tokens of the formats, so that random inputs reach deeper.
constexpr char kOpcodes[] =
    "(.012GJKMNQRXabcd}ehjl]qrst)"
    "uBC\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96";

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  char Byte() { return static_cast<char>(random_()); }

  std::string Damaged(std::string bytes) {
    for (size_t edits = 1 + Below(4); edits > 0 && !bytes.empty(); --edits) {
      const size_t at = Below(bytes.size());
      switch (Below(6)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
          break;
        case 1:
          bytes[at] = Byte();
          break;
        case 2:
          bytes[at] = kOpcodes[Below(sizeof(kOpcodes) - 1)];
          break;
        case 3:
          bytes.resize(at);
          break;
        case 4:  // A stretch from elsewhere, overwriting or inserted.
          bytes.replace(at, Below(2) * 8, bytes.substr(Below(bytes.size()), Below(40)));
          break;
        default:
          bytes.erase(at, 1 + Below(8));
      }
    }
    return bytes;
  }

  std::string Program() {
    std::string bytes = "\x80\x04";
    for (size_t length = Below(60); length > 0; --length) {
      bytes += kOpcodes[Below(sizeof(kOpcodes) - 1)];
      if (Below(3) == 0) bytes += static_cast<char>(Below(4));
    }
    return bytes + ".";
  }

 private:
  std::mt19937 random_;
};

// Visits every reachable value, up to a bound, since parts may be shared.
int64_t Walk(const PickleValue& value, int64_t seen = 0) {
  if (++seen > 10000) return seen;
  EXPECT_LE(value.depth, PickleLimits().depth);
  EXPECT_FALSE(DescribePickled(value).empty());
  for (const PickleValue* item : value.items) {
    if (item == nullptr) continue;
    EXPECT_LT(item->depth, value.depth) << "a circle";
    seen = Walk(*item, seen);
  }
  return seen;
}

// Messages are put into JSON and shown on screens, whatever the input was.
void ExpectShown(const absl::Status& status) { EXPECT_TRUE(IsUtf8(status.message())) << status; }

DcpIndex SomeIndex() {
  DcpIndex index;
  index.files = {"__0_0.distcp", "__1_0.distcp"};
  const TensorType* type = FindTensorType("float32");
  index.tensors.push_back({"a",
                           "float32",
                           type,
                           {4, 3},
                           {{{{0, 0}, {2, 3}}, {0, 0, 500, ""}}, {{{2, 0}, {2, 3}}, {1, 0, 500, ""}}}});
  index.tensors.push_back({"b", "bfloat16", FindTensorType("bfloat16"), {}, {{{{}, {}}, {0, 512, 300, ""}}}});
  index.values.push_back({"step", {0, 900, 50, ""}});
  return index;
}

TEST(CheckpointFuzz, ParsesOrRejectsDamagedMetadata) {
  const std::string good = MetadataOf(SomeIndex());
  ASSERT_TRUE(CheckIndex(*ReadMetadata(good)).empty());
  int read = 0;
  for (int seed = 0; seed < Seeds(20000); ++seed) {
    SCOPED_TRACE(seed);
    const std::string bytes = Dice(seed).Damaged(good);
    const absl::StatusOr<Pickle> pickle = Pickle::Parse(bytes);
    if (pickle.ok()) Walk(pickle->root());
    const absl::StatusOr<DcpIndex> index = ReadMetadata(bytes);
    EXPECT_TRUE(index.ok() || absl::IsDataLoss(index.status())) << index.status();
    ExpectShown(index.status());
    if (!index.ok()) continue;
    CheckIndex(*index);
    ++read;
  }
  EXPECT_GT(read, 0) << "damage in a name, for one, can be read";
}

TEST(CheckpointFuzz, ParsesOrRejectsRandomPrograms) {
  int read = 0;
  for (int seed = 0; seed < Seeds(50000); ++seed) {
    SCOPED_TRACE(seed);
    const absl::StatusOr<Pickle> pickle = Pickle::Parse(Dice(seed).Program());
    EXPECT_TRUE(pickle.ok() || absl::IsDataLoss(pickle.status())) << pickle.status();
    if (pickle.ok()) Walk(pickle->root());
    read += pickle.ok() ? 1 : 0;
  }
  EXPECT_GT(read, 0);
}

TEST(CheckpointFuzz, ParsesOrRejectsDamagedRecords) {
  const TensorType& type = *FindTensorType("float32");
  const TorchSaveFrame frame = FrameOf(type, {3, 5});
  const std::string good =
      frame.head + std::string(60, 'x') + TailOf(type, {3, 5}, Crc32(std::string(60, 'x').data(), 60));
  ASSERT_TRUE(ReadSavedTensor(static_cast<int64_t>(good.size()), ReadAtOf(good)).ok());
  for (int seed = 0; seed < Seeds(20000); ++seed) {
    SCOPED_TRACE(seed);
    const std::string bytes = Dice(seed).Damaged(good);
    const auto size = static_cast<int64_t>(bytes.size());
    // Reads are within the bytes: ReadAtOf() checks that.
    const absl::StatusOr<std::vector<ZipMember>> members = ReadZip(size, ReadAtOf(bytes));
    if (members.ok()) {
      for (const ZipMember& member : *members) {
        EXPECT_TRUE(IsUtf8(member.name));
        ReadZipMember(member, ReadAtOf(bytes), size).IgnoreError();
      }
    }
    const absl::StatusOr<SavedTensor> tensor = ReadSavedTensor(size, ReadAtOf(bytes));
    ExpectShown(ReadSavedValue(size, ReadAtOf(bytes)).status());
    ExpectShown(members.status());
    ExpectShown(tensor.status());
    if (!tensor.ok()) continue;
    EXPECT_LE(tensor->storage.begin + tensor->storage.size, size);
  }
}

// With corrected checksums, so that the damage passes them.
TEST(CheckpointFuzz, ParsesOrRejectsDamagedPicklesInIntactRecords) {
  const TorchSaveFrame frame = FrameOf(*FindTensorType("bfloat16"), {2, 3, 4});
  const auto members = ReadZip(frame.bytes(), [&](int64_t begin, int64_t size, void* out) {
    const std::string bytes =
        frame.head + std::string(48, '\0') + TailOf(*FindTensorType("bfloat16"), {2, 3, 4}, 0);
    return ReadAtOf(bytes)(begin, size, out);
  });
  ASSERT_TRUE(members.ok()) << members.status();
  const std::string pickle = frame.head.substr((*members)[0].begin, (*members)[0].size);
  for (int seed = 0; seed < Seeds(20000); ++seed) {
    SCOPED_TRACE(seed);
    ZipWriter zip;
    zip.Add("archive/data.pkl", Dice(seed).Damaged(pickle));
    zip.Add("archive/data/0", std::string(48, 'n'));
    zip.Finish();
    const std::string bytes = zip.Take();
    const absl::StatusOr<SavedTensor> tensor =
        ReadSavedTensor(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
    EXPECT_TRUE(tensor.ok() || absl::IsDataLoss(tensor.status()) || absl::IsUnimplemented(tensor.status()))
        << tensor.status();
    ExpectShown(tensor.status());
    if (!tensor.ok()) continue;
    // Every element is within the storage.
    int64_t last = tensor->first;
    bool empty = false;
    for (size_t d = 0; d < tensor->shape.size(); ++d) {
      last += (tensor->shape[d] - 1) * tensor->strides[d];
      empty = empty || tensor->shape[d] == 0;
    }
    EXPECT_TRUE(empty || (last + 1) * tensor->type->bytes <= tensor->storage.size);
  }
}

// Likewise with member names and texts, which only the reader checks before they get into a message.
TEST(CheckpointFuzz, MessagesAreUtf8ForIntactRecords) {
  const std::string order = "little";
  for (int seed = 0; seed < Seeds(20000); ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    ZipWriter zip;
    for (const char* name : {"archive/data.pkl", "archive/byteorder", "archive/data/0"}) {
      const bool is_order = name == std::string("archive/byteorder");
      zip.Add(dice.Below(3) == 0 ? dice.Damaged(name) : name, is_order && dice.Below(2) == 0
                                                                  ? dice.Damaged(order)
                                                              : is_order ? order
                                                                         : dice.Program());
    }
    zip.Finish();
    const std::string bytes = zip.Take();
    const auto size = static_cast<int64_t>(bytes.size());
    ExpectShown(ReadSavedTensor(size, ReadAtOf(bytes)).status());
    ExpectShown(ReadSavedValue(size, ReadAtOf(bytes)).status());
  }
}

TEST(CheckpointFuzz, ParsesOrRejectsRandomJson) {
  constexpr char kMeaning[] = "{}[]\":,0123456789-+.eEtruefalsn\\ud8\x01 ";
  int read = 0;
  for (int seed = 0; seed < Seeds(50000); ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    std::string text = R"({"a": {"b": [1, -2.5e+3, "\ud83d\ude00"], "c": {}}, "d": [[true], null]})";
    if (dice.Below(3) == 0) text.clear();
    for (size_t edits = 1 + dice.Below(8); edits > 0; --edits) {
      text.insert(dice.Below(text.size() + 1), 1, kMeaning[dice.Below(sizeof(kMeaning) - 1)]);
      if (dice.Below(2) == 0) text.erase(dice.Below(text.size()), 1);
    }
    const absl::StatusOr<JsonValue> value = ParseJson(text);
    EXPECT_TRUE(value.ok() || absl::IsDataLoss(value.status())) << value.status();
    ExpectShown(value.status());
    if (!value.ok()) continue;
    ++read;
    EXPECT_TRUE(IsUtf8(value->text));
    EXPECT_TRUE(value->keys.empty() || value->keys.size() == value->items.size());
  }
  EXPECT_GT(read, 0);
}

// A damaged header that is accepted must describe a valid file: every byte after the header belongs to one
// tensor.
TEST(CheckpointFuzz, ParsesOrRejectsDamagedSafetensors) {
  std::vector<SafetensorsEntry> tensors = {{"model.embed.weight", FindTensorType("float32"), {3, 5}, 0, 60},
                                           {"norm", FindTensorType("bfloat16"), {7}, 0, 14},
                                           {"none", FindTensorType("int64"), {0, 4}, 0, 0}};
  const std::string head = LayOutSafetensors(&tensors);
  const std::string good = head + std::string(74, 'x');
  int read = 0;
  for (int seed = 0; seed < Seeds(20000); ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    // Only the header: damage in the data is not detectable.
    std::string bytes = dice.Damaged(good.substr(8, head.size() - 8));
    const uint64_t length = dice.Below(8) == 0 ? dice.Below(200) : bytes.size();
    bytes.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += std::string(74, 'x');
    const auto size = static_cast<int64_t>(bytes.size());
    const absl::StatusOr<SafetensorsContents> contents = InspectSafetensors(size, ReadAtOf(bytes));
    ASSERT_TRUE(contents.ok()) << contents.status();
    const absl::Status& first = contents->first;
    ExpectShown(first);
    EXPECT_TRUE(first.ok() || absl::IsDataLoss(first) || absl::IsUnimplemented(first)) << first;
    if (!first.ok()) continue;
    ++read;
    int64_t end = 8 + static_cast<int64_t>(length);
    for (const SafetensorsEntry& entry : contents->entries) {
      EXPECT_EQ(entry.begin, end);
      EXPECT_EQ(*BytesOf(*entry.type, entry.shape), entry.bytes);
      end += entry.bytes;
    }
    EXPECT_EQ(end, size);
  }
  EXPECT_GT(read, 0) << "damage in a name, for one, can be read";
}

TEST(CheckpointFuzz, RejectsDamagedSums) {
  const std::string good = SumsText({{".metadata", {100, 0x12345678}}, {"__0_0.distcp", {1 << 30, 7}}});
  EXPECT_EQ(ParseSums(good)->at("__0_0.distcp").bytes, 1 << 30);
  for (int seed = 0; seed < Seeds(5000); ++seed) {
    const std::string bytes = Dice(seed).Damaged(good);
    EXPECT_EQ(ParseSums(bytes).ok(), bytes == good) << "seed " << seed << ": " << bytes;
  }
}

}  // namespace
}  // namespace fsdpd
