#include "fsdp/checkpoint/format/torch_save.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

// Torch's name for an archive that is written to a stream.
constexpr char kRoot[] = "archive/";
constexpr size_t kMaxDimensions = 64;  // Torch's limit.
constexpr int64_t kMaxOrderBytes = 16;
// A tensor's pickle has about 200 bytes, plus ten per dimension; it may have (empty) hooks.
constexpr PickleLimits kTensorLimits = {64 << 10, 4096, 16};
// A value may be the state of a data loader with a list of remaining samples. It is parsed only to display
// it.
constexpr PickleLimits kValueLimits = {64 << 20, 1 << 20, 64};

int64_t NumbersOf(const std::vector<int64_t>& shape) {
  int64_t numbers = 1;
  for (const int64_t size : shape) numbers *= size;
  return numbers;
}

void WriteInts(const std::vector<int64_t>& numbers, PickleWriter* writer) {
  if (numbers.empty()) return writer->EmptyTuple();
  if (numbers.size() > 3) writer->Mark();
  for (const int64_t number : numbers) writer->Int(number);
  numbers.size() > 3 ? writer->Tuple() : writer->TupleOf(static_cast<int>(numbers.size()));
  writer->Remember();
}

std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) {
    strides[d - 2] = strides[d - 1] * std::max<int64_t>(shape[d - 1], 1);
  }
  return strides;
}

// The pickle that torch._utils writes for a CPU tensor without gradient.
std::string PickleOf(const TensorType& type, const std::vector<int64_t>& shape) {
  const bool typed = !type.storage.empty();
  PickleWriter writer;
  writer.Class("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  writer.Mark();
  writer.Mark();
  writer.Text("storage");
  typed ? writer.Class("torch", type.storage) : writer.Class("torch.storage", "UntypedStorage");
  writer.Text("0");
  writer.Text("cpu");
  writer.Int(NumbersOf(shape) * (typed ? 1 : type.bytes));
  writer.Tuple();
  writer.Remember();
  writer.Outside();
  writer.Int(0);
  WriteInts(shape, &writer);
  WriteInts(StridesOf(shape), &writer);
  writer.Bool(false);
  writer.Class("collections", "OrderedDict");
  writer.EmptyTuple();
  writer.Reduce();
  writer.Remember();
  if (!typed) writer.Class("torch", type.name);
  writer.Tuple();
  writer.Remember();
  writer.Reduce();
  writer.Remember();
  return writer.Take();
}

void BeginArchive(absl::string_view pickle, ZipWriter* zip) {
  zip->Add(absl::StrCat(kRoot, "data.pkl"), pickle);
  zip->Add(absl::StrCat(kRoot, ".format_version"), "1");
  zip->Add(absl::StrCat(kRoot, ".storage_alignment"), "64");
  zip->Add(absl::StrCat(kRoot, "byteorder"), "little");
}

void EndArchive(uint32_t crc32, ZipWriter* zip) {
  zip->Add(absl::StrCat(kRoot, "version"), "3\n");
  zip->Add(absl::StrCat(kRoot, ".data/serialization_id"), absl::StrFormat("%040d", crc32));
  zip->Finish();
}

// The head, and with the checksum the tail.
std::pair<std::string, std::string> Around(const TensorType& type, const std::vector<int64_t>& shape,
                                           uint32_t crc32) {
  ZipWriter zip;
  BeginArchive(PickleOf(type, shape), &zip);
  zip.Begin(absl::StrCat(kRoot, "data/0"), NumbersOf(shape) * type.bytes);
  std::string head = zip.Take();
  zip.End(crc32);
  EndArchive(crc32, &zip);
  return {std::move(head), zip.Take()};
}

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("invalid torch.save record: ", what));
}

// --- Reading ---

struct Archive {
  std::vector<ZipMember> members;
  std::string root;  // Prefix of each member's name.

  const ZipMember* Find(absl::string_view name) const {
    for (const ZipMember& member : members) {
      if (member.name == absl::StrCat(root, name)) return &member;
    }
    return nullptr;
  }
  const ZipMember* pickle() const { return Find("data.pkl"); }
};

absl::StatusOr<Archive> ReadArchive(int64_t size, const ReadAt& read) {
  Archive archive;
  FSDPD_ASSIGN_OR_RETURN(archive.members, ReadZip(size, read));
  for (const ZipMember& member : archive.members) {
    if (absl::EndsWith(member.name, "/data.pkl")) {
      archive.root = member.name.substr(0, member.name.size() - 8);
    }
  }
  const ZipMember* order = archive.Find("byteorder");
  if (order != nullptr) {
    FSDPD_ASSIGN_OR_RETURN(const std::string name, ReadZipMember(*order, read, kMaxOrderBytes));
    if (name == "big") return absl::UnimplementedError("byte order 'big' is not supported");
    if (name != "little") return Bad("unknown byte order");
  }
  if (archive.pickle() == nullptr) return Bad("data.pkl is missing");
  return archive;
}

absl::StatusOr<std::vector<int64_t>> ReadInts(const PickleValue& value) {
  std::vector<int64_t> numbers;
  if (value.kind != PickleKind::kTuple || value.items.size() > kMaxDimensions)
    return Bad("invalid tensor shape");
  for (const PickleValue* item : value.items) {
    if (item->kind != PickleKind::kInt || item->integer < 0) return Bad("invalid tensor size");
    numbers.push_back(item->integer);
  }
  return numbers;
}

absl::StatusOr<const PickleValue*> FindRebuild(const PickleValue* value) {
  if (value->IsObject("torch._utils", "_rebuild_parameter") && !value->arguments().items.empty()) {
    value = value->arguments().items[0];
  }
  if (value->IsObject("torch._utils", "_rebuild_tensor_v2") ||
      value->IsObject("torch._utils", "_rebuild_tensor_v3")) {
    return value;
  }
  return absl::UnimplementedError(absl::StrCat("expected a tensor, found ", DescribePickled(*value)));
}

// Reads the type of the storage or of the tensor, and the storage's member.
absl::Status ReadStorage(const Archive& archive, const std::vector<const PickleValue*>& arguments,
                         SavedTensor* tensor) {
  const PickleValue& outside = *arguments[0];
  if (outside.kind != PickleKind::kOutside || outside.items[0]->kind != PickleKind::kTuple ||
      outside.items[0]->items.size() < 3) {
    return Bad("the tensor has no storage");
  }
  const PickleValue& storage = *outside.items[0]->items[1];
  const PickleValue& key = *outside.items[0]->items[2];
  if (storage.kind != PickleKind::kClass || key.kind != PickleKind::kString || !IsUtf8(key.text)) {
    return Bad("the storage has no name");
  }
  const bool named = arguments.size() >= 7 && arguments[6]->kind == PickleKind::kClass;
  tensor->type = named ? FindTensorType(arguments[6]->name) : FindTensorTypeOfStorage(storage.name);
  if (tensor->type == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("unsupported tensor type: ", DescribePickled(named ? *arguments[6] : storage)));
  }
  const ZipMember* member = archive.Find(absl::StrCat("data/", key.text));
  if (member == nullptr) return Bad(absl::StrCat("missing storage data/", key.text));
  tensor->storage = *member;
  return absl::OkStatus();
}

// Every element is within the storage; computed without overflow.
absl::Status CheckWithin(const SavedTensor& tensor) {
  const int64_t room = tensor.storage.size / tensor.type->bytes;
  if (tensor.strides.size() != tensor.shape.size())
    return Bad("the tensor has another number of strides than of sizes");
  FSDPD_RETURN_IF_ERROR(BytesOf(*tensor.type, tensor.shape).status());
  if (std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0) return absl::OkStatus();
  int64_t last = tensor.first;
  for (size_t d = 0; d < tensor.shape.size() && last < room; ++d) {
    int64_t source = 0;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &source) ||
        __builtin_add_overflow(last, source, &last)) {
      last = room;
    }
  }
  return last < room ? absl::OkStatus()
                     : Bad(absl::StrCat("invalid tensor shape [", absl::StrJoin(tensor.shape, ", "),
                                        "] for a storage of ", tensor.storage.size, " bytes"));
}

absl::StatusOr<SavedTensor> TensorOf(const PickleValue& value, const Archive& archive) {
  FSDPD_ASSIGN_OR_RETURN(const PickleValue* rebuild, FindRebuild(&value));
  const std::vector<const PickleValue*>& arguments = rebuild->arguments().items;
  if (arguments.size() < 4 || arguments[1]->kind != PickleKind::kInt || arguments[1]->integer < 0) {
    return Bad("the tensor lacks storage, offset, size or stride");
  }
  SavedTensor tensor;
  FSDPD_RETURN_IF_ERROR(ReadStorage(archive, arguments, &tensor));
  tensor.first = arguments[1]->integer;
  FSDPD_ASSIGN_OR_RETURN(tensor.shape, ReadInts(*arguments[2]));
  FSDPD_ASSIGN_OR_RETURN(tensor.strides, ReadInts(*arguments[3]));
  FSDPD_RETURN_IF_ERROR(CheckWithin(tensor));
  return tensor;
}

}  // namespace

bool SavedTensor::row_major() const {
  const std::vector<int64_t> expected = StridesOf(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && strides[d] != expected[d]) return false;
  }
  return true;
}

TorchSaveFrame FrameOf(const TensorType& type, const std::vector<int64_t>& shape) {
  const auto [head, tail] = Around(type, shape, 0);
  return {head, NumbersOf(shape) * type.bytes, static_cast<int64_t>(tail.size())};
}

std::string TailOf(const TensorType& type, const std::vector<int64_t>& shape, uint32_t data_crc32) {
  return Around(type, shape, data_crc32).second;
}

std::string TorchSaved(const std::string& pickle) {
  ZipWriter zip;
  BeginArchive(pickle, &zip);
  EndArchive(Crc32(pickle.data(), static_cast<int64_t>(pickle.size())), &zip);
  return zip.Take();
}

absl::StatusOr<int64_t> BytesOf(const TensorType& type, const std::vector<int64_t>& shape) {
  int64_t bytes = type.bytes;
  // Treats a size of 0 as 1, so that the bytes of all partial products fit too.
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return absl::DataLossError(absl::StrCat("invalid tensor shape [", absl::StrJoin(shape, ", "), "]"));
    }
  }
  return std::count(shape.begin(), shape.end(), 0) > 0 ? 0 : bytes;
}

absl::StatusOr<SavedTensor> FindSavedTensor(const PickleValue& value, int64_t size, const ReadAt& read) {
  FSDPD_ASSIGN_OR_RETURN(const Archive archive, ReadArchive(size, read));
  return TensorOf(value, archive);
}

absl::StatusOr<SavedTensor> ReadSavedTensor(int64_t size, const ReadAt& read) {
  FSDPD_ASSIGN_OR_RETURN(const Archive archive, ReadArchive(size, read));
  FSDPD_ASSIGN_OR_RETURN(std::string bytes, ReadZipMember(*archive.pickle(), read, kTensorLimits.bytes));
  FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Parse(std::move(bytes), kTensorLimits));
  return TensorOf(pickle.root(), archive);
}

absl::StatusOr<Pickle> ReadSavedValue(int64_t size, const ReadAt& read) {
  FSDPD_ASSIGN_OR_RETURN(const Archive archive, ReadArchive(size, read));
  if (const int64_t bytes = archive.pickle()->size; bytes > kValueLimits.bytes)
    return absl::UnimplementedError(absl::StrCat("value is too large: ", bytes, " bytes"));
  FSDPD_ASSIGN_OR_RETURN(std::string bytes, ReadZipMember(*archive.pickle(), read, kValueLimits.bytes));
  absl::StatusOr<Pickle> pickle = Pickle::Parse(std::move(bytes), kValueLimits);
  if (!pickle.ok()) return absl::UnimplementedError(pickle.status().message());
  return pickle;
}

}  // namespace fsdpd
