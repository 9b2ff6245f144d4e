// name, model and data.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <cmath>

#include "base/ids.h"
#include "base/text.h"
#include "fsdp/plan/rule_table.h"

namespace fsdpd {
namespace {

constexpr FaultLevel kError = FaultLevel::kError;
constexpr FaultLevel kWarn = FaultLevel::kWarn;

// Bounds far above any model of the family; below them no product of sizes leaves 63 bits.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxSequence = 1 << 20;

bool HasLlama(const Facts& f) { return f.job.model().has_llama(); }

Findings Size(const Facts& f, const char* name, int64_t value, int64_t most, const char* example) {
  if (!HasLlama(f) || (value >= 1 && value <= most)) return {};
  return {{absl::StrCat(name, " is ", value, " and must be between 1 and ", most),
           absl::StrCat("write for example ", name, ": ", example)}};
}

Findings PositiveReal(const Facts& f, const char* name, double value, const char* usual) {
  if (!HasLlama(f) || (std::isfinite(value) && value >= 0)) return {};
  return {{absl::StrCat(name, " is ", value, " and must be a positive, finite number"),
           absl::StrCat("leave it out for the default, ", usual)}};
}

std::string TokensField(int i, const char* name) { return absl::StrCat("data.tokens[", i, "].", name); }

// Calls `check` for each token file and gives its finding that file's field.
template <typename Check>
Findings EachFile(const Facts& f, const char* name, Check check) {
  Findings findings;
  for (int i = 0; i < f.job.data().tokens_size(); ++i) {
    for (Finding& finding : check(f.job.data().tokens(i))) {
      finding.field = TokensField(i, name);
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

const Rule kRules[] = {
    {"name_is_label", kError, "name", "the name is a DNS label of at most 40 characters",
     [](const Facts& f) -> Findings {
       const absl::Status status = CheckName(f.job.name());
       if (status.ok()) return {};
       return {{absl::StrCat("'", f.job.name(), "' ", status.message(),
                             "; the job's id, folders and metric labels are made from it"),
                "write lower-case letters, digits and '-', for example: tiny-llama"}};
     }},
    {"model_required", kError, "model", "exactly one model source is set",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() != v1::Model::SOURCE_NOT_SET) return {};
       return {{"no model is named, so there is nothing to train",
                absl::StrCat("write model: {preset: NAME} with one of ", absl::StrJoin(PresetNames(), ", "),
                             ", or model: {hf_config: PATH}, or model: {llama: {...}}")}};
     }},
    {"preset_unknown", kError, "model.preset", "the preset is a built-in one",
     [](const Facts& f) -> Findings {
       const v1::Model& model = f.job.model();
       if (model.source_case() != v1::Model::kPreset || FindPreset(model.preset()) != nullptr) return {};
       const std::string nearest = Nearest(model.preset(), PresetNames());
       return {{absl::StrCat("there is no preset '", model.preset(), "'; the presets are ",
                             absl::StrJoin(PresetNames(), ", ")),
                nearest.empty() ? "name one of them, or spell the sizes out in model.llama"
                                : absl::StrCat("write preset: ", nearest)}};
     }},
    {"hf_config_unresolved", kError, "model.hf_config", "hf_config is read by the client",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() != v1::Model::kHfConfig) return {};
       return {{absl::StrCat("'", f.job.model().hf_config(),
                             "' is a path on the submitter's machine, which only the client can read"),
                "submit with fsdpctl, which sends the file's sizes, or write them in model.llama"}};
     }},
    {"vocab_size_range", kError, "model.llama.vocab_size", "vocab_size is positive and at most 2^24",
     [](const Facts& f) {
       return Size(f, "vocab_size", f.job.model().llama().vocab_size(), kMaxVocab, "32000");
     }},
    {"hidden_size_range", kError, "model.llama.hidden_size", "hidden_size is positive and at most 2^17",
     [](const Facts& f) {
       return Size(f, "hidden_size", f.job.model().llama().hidden_size(), kMaxHidden, "4096");
     }},
    {"intermediate_size_range", kError, "model.llama.intermediate_size",
     "intermediate_size is positive and at most 2^20",
     [](const Facts& f) {
       return Size(f, "intermediate_size", f.job.model().llama().intermediate_size(), kMaxIntermediate,
                   "14336");
     }},
    {"layers_range", kError, "model.llama.layers", "layers is positive and at most 1024",
     [](const Facts& f) { return Size(f, "layers", f.job.model().llama().layers(), kMaxLayers, "32"); }},
    {"heads_range", kError, "model.llama.heads", "heads is positive and at most 1024",
     [](const Facts& f) { return Size(f, "heads", f.job.model().llama().heads(), kMaxHeads, "32"); }},
    {"kv_heads_positive", kError, "model.llama.kv_heads", "kv_heads is not negative (0: as many as heads)",
     [](const Facts& f) -> Findings {
       if (!HasLlama(f) || f.job.model().llama().kv_heads() >= 0) return {};
       return {{absl::StrCat("kv_heads is ", f.job.model().llama().kv_heads(), " and cannot be negative"),
                "leave it out for as many as heads"}};
     }},
    {"heads_divide_hidden", kError, "model.llama.heads", "heads divides hidden_size",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || !f.Sound({"model.llama.hidden_size", "model.llama.heads"})) return {};
       if (llama.hidden_size() % llama.heads() == 0) return {};
       return {{absl::StrCat("hidden_size ", llama.hidden_size(), " does not split into ", llama.heads(),
                             " equal heads"),
                "choose heads so that hidden_size / heads is whole, usually 64 or 128"}};
     }},
    {"head_size_even", kError, "model.llama.heads", "hidden_size / heads is even",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || !f.Sound({"model.llama.hidden_size", "model.llama.heads"})) return {};
       const int64_t head = llama.hidden_size() / llama.heads();
       if (head % 2 == 0) return {};
       return {{absl::StrCat("a head has ", head, " elements, and rotary positions turn them in pairs"),
                "choose heads so that hidden_size / heads is even"}};
     }},
    {"kv_heads_divide_heads", kError, "model.llama.kv_heads", "kv_heads divides heads",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || !f.Sound({"model.llama.heads", "model.llama.kv_heads"})) return {};
       if (llama.kv_heads() == 0 || llama.heads() % llama.kv_heads() == 0) return {};
       return {{absl::StrCat("each of ", llama.kv_heads(), " key-value heads must serve equally many of the ",
                             llama.heads(), " query heads"),
                "choose kv_heads among the divisors of heads, or leave it out"}};
     }},
    {"rope_theta_positive", kError, "model.llama.rope_theta", "rope_theta is positive and finite",
     [](const Facts& f) {
       return PositiveReal(f, "rope_theta", f.job.model().llama().rope_theta(), "10000");
     }},
    {"norm_epsilon_positive", kError, "model.llama.norm_epsilon", "norm_epsilon is positive and finite",
     [](const Facts& f) {
       return PositiveReal(f, "norm_epsilon", f.job.model().llama().norm_epsilon(), "1e-5");
     }},
    {"tied_embeddings_unsupported", kError, "model.llama.tied_embeddings", "tied_embeddings is false",
     [](const Facts& f) -> Findings {
       if (!f.job.model().llama().tied_embeddings()) return {};
       return {
           {"tied embeddings are not supported yet: the embedding and the head are two units with two "
            "matrices",
            "write tied_embeddings: false, or use a model with separate matrices"}};
     }},
    {"data_required", kError, "data", "exactly one of tokens and synthetic is set",
     [](const Facts& f) -> Findings {
       const v1::Data& data = f.job.data();
       if ((data.tokens_size() > 0) != data.has_synthetic()) return {};
       return {{data.has_synthetic() ? "both tokens and synthetic are set, and a job trains on one of them"
                                     : "neither tokens nor synthetic is set, so there is nothing to train on",
                "write data: {tokens: [{path: FILE}], ...} or data: {synthetic: {}, ...}"}};
     }},
    {"sequence_length_range", kError, "data.sequence_length", "sequence_length is positive and at most 2^20",
     [](const Facts& f) -> Findings {
       const int64_t length = f.job.data().sequence_length();
       if (length >= 1 && length <= kMaxSequence) return {};
       return {{absl::StrCat("sequence_length is ", length, " and must be between 1 and ", kMaxSequence),
                "write for example sequence_length: 2048"}};
     }},
    {"token_path_required", kError, "data.tokens", "each token file has a path",
     [](const Facts& f) {
       return EachFile(f, "path", [](const v1::TokenFile& file) -> Findings {
         if (!file.path().empty()) return {};
         return {{"the path is empty", "write the file's path on the nodes that run ranks"}};
       });
     }},
    {"token_path_absolute", kError, "data.tokens", "each token file's path is absolute",
     [](const Facts& f) {
       return EachFile(f, "path", [](const v1::TokenFile& file) -> Findings {
         if (file.path().empty() || file.path()[0] == '/') return {};
         return {
             {absl::StrCat("'", file.path(), "' is relative, and ranks run in folders of their own"),
              absl::StrCat("write the whole path, /.../", file.path(), " (fsdpctl does this by itself)")}};
       });
     }},
    {"token_weight_positive", kError, "data.tokens", "each token file's weight is positive and finite",
     [](const Facts& f) {
       return EachFile(f, "weight", [](const v1::TokenFile& file) -> Findings {
         if (std::isfinite(file.weight()) && file.weight() >= 0) return {};
         return {{absl::StrCat("the weight is ", file.weight(), " and is a share of the samples"),
                  "write a positive number, or leave it out for 1"}};
       });
     }},
    {"token_type_known", kError, "data.tokens", "each token file's type is u8, u16 or u32",
     [](const Facts& f) {
       return EachFile(f, "type", [](const v1::TokenFile& file) -> Findings {
         if (v1::TokenType_IsValid(file.type())) return {};
         return {{absl::StrCat("token type ", static_cast<int>(file.type()), " is not known"),
                  "write type: u8, u16 or u32"}};
       });
     }},
    {"text_fits_vocab", kError, "data.tokens", "a model that reads u8 text has at least 256 tokens",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() == v1::Model::SOURCE_NOT_SET || !f.Sound({"model"})) return {};
       const int64_t vocab = f.model().vocab_size;
       return EachFile(f, "type", [vocab](const v1::TokenFile& file) -> Findings {
         if (file.type() != v1::TOKEN_TYPE_U8 || vocab >= 256) return {};
         return {
             {absl::StrCat("u8 reads each byte as a token, 0 to 255, and the model knows ", vocab, " tokens"),
              "use a model with vocab_size of at least 256, or tokenised files of type u16 or u32"}};
       });
     }},
    {"u16_below_vocab", kWarn, "data.tokens", "u16 files can hold every token of the model",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() == v1::Model::SOURCE_NOT_SET || !f.Sound({"model"})) return {};
       const int64_t vocab = f.model().vocab_size;
       return EachFile(f, "type", [vocab](const v1::TokenFile& file) -> Findings {
         const bool u16 = file.type() == v1::TOKEN_TYPE_U16 || file.type() == v1::TOKEN_TYPE_UNSPECIFIED;
         if (!u16 || vocab <= 65536) return {};
         return {{absl::StrCat("u16 holds ids below 65536 and the model has ", vocab,
                               " tokens: files of such a tokenizer are usually u32"),
                  "write type: u32 if the file holds 4-byte ids"}};
       });
     }},
    {"synthetic_vocab_range", kError, "data.synthetic.vocab",
     "synthetic tokens are within the model's vocabulary",
     [](const Facts& f) -> Findings {
       if (!f.job.data().has_synthetic()) return {};
       const int64_t vocab = f.job.data().synthetic().vocab();
       if (vocab < 0) return {{absl::StrCat("vocab is ", vocab, " and cannot be negative"), "leave it out"}};
       if (f.job.model().source_case() == v1::Model::SOURCE_NOT_SET || !f.Sound({"model"})) return {};
       if (vocab <= f.model().vocab_size) return {};
       return {{absl::StrCat("tokens up to ", vocab - 1, " would be drawn and the model knows ",
                             f.model().vocab_size),
                absl::StrCat("write at most ", f.model().vocab_size, ", or leave it out")}};
     }},
};

}  // namespace

const std::vector<Rule>& ModelRules() {
  static const auto* rules = new std::vector<Rule>(std::begin(kRules), std::end(kRules));
  return *rules;
}

}  // namespace fsdpd
