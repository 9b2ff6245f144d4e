#include "fsdp/checkpoint/dcp/dcp_metadata.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {
namespace {

// Five times the chunks of 80 layers with two moments each, sharded over 4096 ranks.
constexpr int64_t kMaxChunks = 16 << 20;
// Bounds per entry, because values of a pickle can be shared: fields of an object (torch's have 5),
// dimensions (torch's own limit), bytes of a name.
constexpr size_t kMaxFields = 32, kMaxDimensions = 64, kMaxNameBytes = 4096, kMaxTypeBytes = 64;

constexpr char kModule[] = "torch.distributed.checkpoint.metadata";
constexpr char kStorageModule[] = "torch.distributed.checkpoint.filesystem";

// --- Writing ---

class MetadataWriter {
 public:
  explicit MetadataWriter(const DcpIndex& index) : index_(index) {}

  std::string Write() {
    Begin(kModule, "Metadata");
    Key("state_dict_metadata");
    WriteEntries();
    Key("planner_data");
    WriteNames();
    Key("storage_data");
    WritePlaces();
    Key("storage_meta");
    WriteStorageMeta();
    Key("version").Text("1.0.0");
    End();
    return writer_.Take();
  }

 private:
  // Begin() and End() enclose an object whose state is a dict.
  void Begin(const char* module, const char* name) {
    New(module, name);
    writer_.BeginDict();
  }
  void End() {
    writer_.SetItems();
    writer_.Build();
  }
  void New(const char* module, const char* name) {
    writer_.Class(module, name);
    writer_.EmptyTuple();
    writer_.NewObject();
  }
  PickleWriter& Key(absl::string_view key) {
    writer_.Text(key);
    return writer_;
  }

  // Writes repeated content once, and then fetches it from the memo.
  template <typename Write>
  void Once(std::optional<int64_t>* remembered, Write write) {
    if (remembered->has_value()) return writer_.Again(**remembered);
    write();
    *remembered = writer_.Remember();
  }

  void WriteSize(const std::vector<int64_t>& size) {
    writer_.Class("torch", "Size");
    writer_.Mark();
    for (const int64_t number : size) writer_.Int(number);
    writer_.Tuple();
    writer_.TupleOf(1);
    writer_.Reduce();
  }

  void WriteProperties(const TensorType& type) {
    Once(&properties_[type.name], [&] {
      New(kModule, "TensorProperties");
      writer_.Mark();
      writer_.Class("torch", type.name);
      Once(&layout_, [&] {
        writer_.Class("torch.serialization", "_get_layout");
        writer_.Text("torch.strided");
        writer_.TupleOf(1);
        writer_.Reduce();
      });
      writer_.Bool(false);
      Once(&contiguous_, [&] {
        writer_.Class(kModule, "_MEM_FORMAT_ENCODING");
        writer_.Int(0);
        writer_.TupleOf(1);
        writer_.Reduce();
      });
      writer_.Bool(false);
      writer_.Tuple();
      writer_.Build();
    });
  }

  void WriteTensor(const DcpTensor& tensor) {
    Begin(kModule, "TensorStorageMetadata");
    Key("properties");
    WriteProperties(*tensor.type);
    Key("size");
    WriteSize(tensor.shape);
    Key("chunks").BeginList();
    for (const DcpChunk& chunk : tensor.chunks) {
      Begin(kModule, "ChunkStorageMetadata");
      Key("offsets");
      WriteSize(chunk.at.offsets);
      Key("sizes");
      WriteSize(chunk.at.sizes);
      End();
    }
    writer_.Appends();
    End();
  }

  void WriteEntries() {
    writer_.BeginDict();
    for (const DcpTensor& tensor : index_.tensors) {
      Key(tensor.name);
      WriteTensor(tensor);
    }
    for (const DcpValue& value : index_.values) {
      Key(value.name);
      New(kModule, "BytesStorageMetadata");
    }
    writer_.SetItems();
  }

  // Maps each name to its keys in a nested dict: to itself only.
  void WriteNames() {
    writer_.BeginDict();
    const auto write = [&](const std::string& name) {
      Key(name).Text(name);
      writer_.TupleOf(1);
    };
    for (const DcpTensor& tensor : index_.tensors) write(tensor.name);
    for (const DcpValue& value : index_.values) write(value.name);
    writer_.SetItems();
  }

  void WritePlace(const std::string& name, const std::vector<int64_t>* offsets, int64_t number,
                  const DcpPlace& place) {
    Begin(kModule, "MetadataIndex");
    Key("fqn").Text(name);
    offsets == nullptr ? Key("index").None() : Key("index").Int(number);
    Key("offset");
    offsets == nullptr ? writer_.None() : WriteSize(*offsets);
    End();
    Begin(kStorageModule, "_StorageInfo");
    Key("relative_path").Text(index_.files[place.file]);
    Key("offset").Int(place.begin);
    Key("length").Int(place.bytes);
    End();
  }

  void WritePlaces() {
    writer_.BeginDict();
    for (const DcpTensor& tensor : index_.tensors) {
      for (size_t i = 0; i < tensor.chunks.size(); ++i) {
        const DcpChunk& chunk = tensor.chunks[i];
        WritePlace(tensor.name, &chunk.at.offsets, static_cast<int64_t>(i), chunk.place);
      }
    }
    for (const DcpValue& value : index_.values) WritePlace(value.name, nullptr, 0, value.place);
    writer_.SetItems();
  }

  void WriteStorageMeta() {
    Begin(kModule, "StorageMeta");
    for (const char* key : {"checkpoint_id", "save_id", "load_id"}) {
      Key(key).None();
    }
    Key("modules").EmptyList();
    End();
  }

  const DcpIndex& index_;
  PickleWriter writer_;
  absl::flat_hash_map<absl::string_view, std::optional<int64_t>> properties_;
  std::optional<int64_t> layout_, contiguous_;
};

// --- Reading ---

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("invalid checkpoint metadata: ", what));
}

// A text that is valid UTF-8; null otherwise.
const PickleValue* TextOnly(const PickleValue* value) {
  const bool is_text = value != nullptr && value->kind == PickleKind::kString &&
                       value->text.size() <= kMaxNameBytes && IsUtf8(value->text);
  return is_text ? value : nullptr;
}

// The value of a field in an object's state; null if absent.
const PickleValue* Field(const PickleValue& object, absl::string_view key) {
  if (object.kind != PickleKind::kObject || object.state() == nullptr) return nullptr;
  return object.state()->items.size() <= 2 * kMaxFields ? object.state()->Find(key) : nullptr;
}

const PickleValue* FieldOf(const PickleValue& object, absl::string_view key, PickleKind kind) {
  const PickleValue* field = Field(object, key);
  return field != nullptr && field->kind == kind ? field : nullptr;
}

// torch.Size((2, 3)), or any tuple or list of integers. CheckIndex validates their range.
bool ReadSize(const PickleValue* value, std::vector<int64_t>* size) {
  if (value == nullptr) return false;
  if (value->IsObject("torch", "Size") && value->arguments().items.size() == 1)
    value = value->arguments().items[0];
  if (value->kind != PickleKind::kTuple && value->kind != PickleKind::kList) return false;
  if (value->items.size() > kMaxDimensions) return false;
  size->clear();
  for (const PickleValue* number : value->items) {
    if (number->kind != PickleKind::kInt) return false;
    size->push_back(number->integer);
  }
  return true;
}

std::string PlaceKey(absl::string_view name, const std::vector<int64_t>& offsets) {
  return absl::StrCat(name, ShapeText(offsets));
}

class MetadataReader {
 public:
  // `bytes`: size of the pickle.
  explicit MetadataReader(int64_t bytes) : numbers_left_(bytes) {}

  absl::StatusOr<DcpIndex> Read(const PickleValue& root) {
    if (!root.IsObject(kModule, "Metadata"))
      return Bad(absl::StrCat("got ", DescribePickled(root), ", want a Metadata object"));
    const PickleValue* places = FieldOf(root, "storage_data", PickleKind::kDict);
    const PickleValue* entries = FieldOf(root, "state_dict_metadata", PickleKind::kDict);
    if (places == nullptr || entries == nullptr) return Bad("state_dict_metadata or storage_data is missing");
    for (size_t i = 0; i < places->items.size(); i += 2) {
      FSDPD_RETURN_IF_ERROR(ReadPlace(*places->items[i], *places->items[i + 1]));
    }
    for (size_t i = 0; i < entries->items.size(); i += 2) {
      if (TextOnly(entries->items[i]) == nullptr) return Bad("an entry name is not a string");
      FSDPD_RETURN_IF_ERROR(ReadEntry(std::string(entries->items[i]->text), *entries->items[i + 1]));
    }
    const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::sort(index_.tensors.begin(), index_.tensors.end(), by_name);
    std::sort(index_.values.begin(), index_.values.end(), by_name);
    return std::move(index_);
  }

 private:
  absl::Status ReadPlace(const PickleValue& key, const PickleValue& info) {
    const PickleValue* name = TextOnly(Field(key, "fqn"));
    const PickleValue* file = TextOnly(Field(info, "relative_path"));
    const PickleValue* begin = FieldOf(info, "offset", PickleKind::kInt);
    const PickleValue* bytes = FieldOf(info, "length", PickleKind::kInt);
    if (name == nullptr || file == nullptr || begin == nullptr || bytes == nullptr) {
      return Bad("a storage_data entry lacks name, file, offset or length");
    }
    const PickleValue* offset = Field(key, "offset");
    std::vector<int64_t> offsets;
    if (offset != nullptr && offset->kind != PickleKind::kNone && !ReadSize(offset, &offsets)) {
      return Bad(absl::StrCat("the storage_data entry of a chunk of ", name->text, " has no offsets"));
    }
    DcpPlace place = {FileNumber(std::string(file->text)), begin->integer, bytes->integer, ""};
    const PickleValue* transforms = Field(info, "transform_descriptors");
    if (transforms != nullptr && transforms->kind != PickleKind::kNone) {
      const PickleValue* first = transforms->items.empty() ? nullptr : TextOnly(transforms->items[0]);
      place.transform =
          first == nullptr || first->text.size() > kMaxTypeBytes ? "?" : std::string(first->text);
    }
    if (!places_.emplace(PlaceKey(name->text, offsets), std::move(place)).second) {
      return Bad(absl::StrCat("duplicate storage_data entry for a chunk of ", name->text));
    }
    return absl::OkStatus();
  }

  int FileNumber(const std::string& name) {
    const auto [found, is_new] = file_numbers_.emplace(name, static_cast<int>(index_.files.size()));
    if (is_new) index_.files.push_back(name);
    return found->second;
  }

  absl::Status ReadEntry(const std::string& name, const PickleValue& entry) {
    if (!names_.emplace(name, 0).second) return Bad(absl::StrCat("duplicate entry ", name));
    if (!entry.IsObject(kModule, "TensorStorageMetadata")) {
      // BytesStorageMetadata has no fields; other classes are treated the same way.
      index_.values.push_back({name, TakePlace(PlaceKey(name, {}))});
      return absl::OkStatus();
    }
    DcpTensor tensor;
    tensor.name = name;
    const PickleValue* properties = Field(entry, "properties");
    const PickleValue* state =
        properties != nullptr && properties->kind == PickleKind::kObject ? properties->state() : nullptr;
    if (state == nullptr || state->kind != PickleKind::kTuple || state->items.empty() ||
        state->items[0]->kind != PickleKind::kClass || state->items[0]->name.size() > kMaxTypeBytes ||
        !IsUtf8(state->items[0]->name)) {
      return Bad(absl::StrCat("invalid dtype of ", name));
    }
    tensor.type_name = std::string(state->items[0]->name);
    tensor.type = FindTensorType(tensor.type_name);
    if (!ReadSize(Field(entry, "size"), &tensor.shape)) return Bad(absl::StrCat("invalid shape of ", name));
    FSDPD_RETURN_IF_ERROR(Count(tensor.shape));
    const PickleValue* chunks = FieldOf(entry, "chunks", PickleKind::kList);
    if (chunks == nullptr) return Bad(absl::StrCat("invalid chunks of ", name));
    for (const PickleValue* chunk : chunks->items) FSDPD_RETURN_IF_ERROR(ReadChunk(*chunk, &tensor));
    index_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status ReadChunk(const PickleValue& value, DcpTensor* tensor) {
    if (++chunks_ > kMaxChunks) return Bad(absl::StrCat("more than ", kMaxChunks, " chunks"));
    DcpChunk chunk;
    if (!ReadSize(Field(value, "offsets"), &chunk.at.offsets) ||
        !ReadSize(Field(value, "sizes"), &chunk.at.sizes)) {
      return Bad(absl::StrCat("invalid chunk of ", tensor->name));
    }
    FSDPD_RETURN_IF_ERROR(Count(chunk.at.sizes));
    chunk.place = TakePlace(PlaceKey(tensor->name, chunk.at.offsets));
    tensor->chunks.push_back(std::move(chunk));
    return absl::OkStatus();
  }

  // Bounds the total: a list of chunks shared by many tensors would expand without limit. A list that is
  // written once per tensor takes several bytes per number.
  absl::Status Count(const std::vector<int64_t>& size) {
    numbers_left_ -= 1 + static_cast<int64_t>(size.size());
    return numbers_left_ >= 0 ? absl::OkStatus() : Bad("more sizes and offsets than the file has bytes");
  }

  DcpPlace TakePlace(const std::string& key) {
    const auto found = places_.find(key);
    return found == places_.end() ? DcpPlace() : found->second;
  }

  DcpIndex index_;
  absl::flat_hash_map<std::string, DcpPlace> places_;
  absl::flat_hash_map<std::string, int> file_numbers_, names_;
  int64_t chunks_ = 0, numbers_left_;
};

}  // namespace

std::string MetadataOf(const DcpIndex& index) { return MetadataWriter(index).Write(); }

absl::StatusOr<DcpIndex> ReadMetadata(std::string bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, Pickle::Parse(std::move(bytes)));
  return MetadataReader(size).Read(pickle.root());
}

}  // namespace fsdpd
