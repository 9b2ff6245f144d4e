// Rules of data.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "base/spec_text/enum_name.h"
#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/spec/token_files_limit.h"

namespace fsdpd {
namespace {

// Calls `check` for each training and validation file, and sets the finding's field to that file's.
template <typename Check>
Findings EachFile(const Facts& f, const char* name, Check check) {
  Findings findings;
  const auto& data = f.job.data();
  for (const auto& [list, files] :
       {std::pair("tokens", &data.tokens()), std::pair("validation", &data.validation())}) {
    for (int i = 0; i < files->size(); ++i) {
      AddFindings(check(files->Get(i)), absl::StrCat("data.", list, "[", i, "].", name), &findings);
    }
  }
  return findings;
}

// Per list, as ranks keep the files open.
Findings FewFiles(const Facts& f) {
  Findings findings;
  const auto& data = f.job.data();
  const auto has_mask = [](const v1::TokenFile& file) { return !file.mask().empty(); };
  for (const auto& [field, files] :
       {std::pair("data.tokens", &data.tokens()), std::pair("data.validation", &data.validation())}) {
    const int64_t masks = std::count_if(files->begin(), files->end(), has_mask);
    if (files->size() + masks <= static_cast<int64_t>(kMaxTokenFiles)) continue;
    const std::string with_masks = masks > 0 ? absl::StrCat(" and ", masks, " masks") : "";
    findings.push_back({absl::StrCat("it lists ", files->size(), " files", with_masks,
                                     ", and a rank can hold at most ", kMaxTokenFiles, " open"),
                        "merge files; one file can hold any number of documents", field});
  }
  return findings;
}

// data.document_end_token must be an id that the data can contain: below the limit of the stored id width or
// of the synthetic vocabulary.
Findings DocumentsEnd(const Facts& f) {
  const v1::Data& data = f.job.data();
  if (!data.has_document_end_token() ||
      !f.IsValid({"data.document_end_token", "data.tokens", "data.synthetic"}))
    return {};
  const int64_t token = data.document_end_token();
  const auto never = [token](const std::string& what, int64_t below) -> Findings {
    if (token < below) return {};
    return {{absl::StrCat(what, " below ", below, ", so no document ends with token ", token),
             "write the end-of-document id of this data, or leave it out"}};
  };
  if (data.has_synthetic())
    return data.synthetic().has_vocab() ? never("random tokens are", data.synthetic().vocab()) : Findings();
  for (const v1::TokenFile& file : data.tokens()) {
    const int64_t below = file.type() == v1::TOKEN_TYPE_U8    ? 1 << 8
                          : file.type() == v1::TOKEN_TYPE_U16 ? 1 << 16
                                                              : std::numeric_limits<int64_t>::max();
    Findings findings = never(absl::StrCat("ids in ", file.path(), " are"), below);
    if (!findings.empty()) return findings;
  }
  return {};
}

bool PacksDocuments(const Facts& f) { return f.job.data().packing() == v1::PACKING_DOCUMENTS; }

Findings NotInVocabulary(const Facts& f, bool is_set, int64_t token, const char* fix) {
  if (!is_set || !f.ModelIsKnown() || (token >= 0 && token < VocabSize(f.model()))) return {};
  return {{absl::StrCat("token ", token, " is not in the vocabulary of ", VocabSize(f.model())), fix}};
}

const Rule kRules[] = {
    {"data_required", kError, "data", "exactly one of tokens and synthetic must be set",
     [](const Facts& f) -> Findings {
       const v1::Data& data = f.job.data();
       if (!f.IsValid({"data.tokens", "data.synthetic"})) return {};
       if ((data.tokens_size() > 0) != data.has_synthetic()) return {};
       return {{data.has_synthetic() ? "both tokens and synthetic are set"
                                     : "neither tokens nor synthetic is set, so there is nothing to train on",
                "write data: {tokens: [{path: FILE}], ...} or data: {synthetic: {}, ...}"}};
     }},
    {"sequence_length_range", kError, "data.sequence_length",
     "sequence_length must be positive and at most 2^20",
     Required(kMaxSequence, "write for example sequence_length: 2048")},
    {"token_files_few", kError, "data.tokens",
     "a list of token files must have at most 1024 files, masks included", FewFiles},
    {"token_path_required", kError, "data.tokens", "each token file needs a path",
     [](const Facts& f) {
       return EachFile(f, "path", [](const v1::TokenFile& file) -> Findings {
         if (!file.path().empty()) return {};
         return {{"the path is empty", "write the file's path on the nodes that run ranks"}};
       });
     }},
    {"token_path_absolute", kError, "data.tokens", "token file paths must be absolute, without ..",
     [](const Facts& f) {
       return EachFile(f, "path",
                       [](const v1::TokenFile& file) -> Findings { return CheckPath(file.path()); });
     }},
    {"token_weight_positive", kError, "data.tokens", "token file weights must be positive and finite",
     [](const Facts& f) {
       return EachFile(f, "weight", [](const v1::TokenFile& file) -> Findings {
         return CheckPositive(file.weight(), "the weight, a share of the samples,",
                              "write a positive number, omit it (default: 1), or leave the file out");
       });
     }},
    {"token_type_known", kError, "data.tokens", "token file types must be u8, u16, u32 or megatron",
     [](const Facts& f) {
       return EachFile(f, "type", [](const v1::TokenFile& file) -> Findings {
         if (v1::TokenType_IsValid(file.type())) return {};
         return {{absl::StrCat("token type ", static_cast<int>(file.type()), " is not supported"),
                  "write type: u8, u16, u32 or megatron"}};
       });
     }},
    {"text_fits_vocab", kError, "data.tokens", "type: u8 requires vocab_size of at least 256",
     [](const Facts& f) -> Findings {
       if (!f.ModelIsKnown()) return {};
       const int64_t vocab = VocabSize(f.model());
       return EachFile(f, "type", [vocab](const v1::TokenFile& file) -> Findings {
         if (file.type() != v1::TOKEN_TYPE_U8 || vocab >= 256) return {};
         return {{absl::StrCat("u8 reads each byte as a token id from 0 to 255, and the vocabulary has ",
                               vocab, " tokens"),
                  "use a model with vocab_size of at least 256, or tokenized files of type u16 or u32"}};
       });
     }},
    {"u16_below_vocab", kWarn, "data.tokens", "u16 files cannot hold every id of a vocabulary above 65536",
     [](const Facts& f) -> Findings {
       if (!f.ModelIsKnown()) return {};
       const int64_t vocab = VocabSize(f.model());
       return EachFile(f, "type", [vocab](const v1::TokenFile& file) -> Findings {
         if (file.type() != v1::TOKEN_TYPE_U16 || vocab <= 65536) return {};
         return {{absl::StrCat("u16 holds ids below 65536, and the vocabulary has ", vocab,
                               " tokens; such tokenizers usually write u32"),
                  "write type: u32 if the file holds 4-byte ids"}};
       });
     }},
    {"synthetic_vocab_range", kError, "data.synthetic.vocab",
     "synthetic.vocab must not exceed the model's vocabulary",
     [](const Facts& f) -> Findings {
       if (!f.job.data().synthetic().has_vocab()) return {};
       const int64_t vocab = f.job.data().synthetic().vocab();
       if (vocab < 1) {
         return {{absl::StrCat("vocab is ", vocab, " and must be at least 1"),
                  "omit it (default: the model's vocab_size)"}};
       }
       if (!f.ModelIsKnown()) return {};
       if (vocab <= VocabSize(f.model())) return {};
       return {{absl::StrCat("ids up to ", vocab - 1, " would be drawn, and the vocabulary has ",
                             VocabSize(f.model())),
                absl::StrCat("write at most ", VocabSize(f.model()), ", or leave it out")}};
     }},
    {"sequence_within_positions", kError, "data.sequence_length",
     "sequence_length must not exceed the model's maximum sequence length",
     [](const Facts& f) -> Findings {
       if (!f.ModelIsKnown() || !f.IsValid({"data.sequence_length"})) return {};
       const int64_t most = MaxSequenceLength(f.model());
       if (most == 0 || f.job.data().sequence_length() <= most) return {};
       // An error for learned positions, which end there; a warning for rotary ones, which are defined beyond
       // the trained length.
       const char* longer = f.job.model().has_llama()
                                ? "; or raise model.llama.positions to train on longer sequences"
                            : std::holds_alternative<LlamaConfig>(f.model())
                                ? "; or write the sizes in model.llama to train on longer sequences"
                                : "";
       return {{absl::StrCat("samples have ", f.job.data().sequence_length(),
                             " tokens, and the model supports at most ", most),
                absl::StrCat("write sequence_length: ", most, " or less", longer)}};
     }},
    {"ignore_index_range", kError, "data.ignore_index", "ignore_index must be an id of the vocabulary",
     [](const Facts& f) {
       return NotInVocabulary(f, f.job.data().has_ignore_index(), f.job.data().ignore_index(),
                              "write the id of the padding token, or leave it out to count every target");
     }},
    {"mask_path_absolute", kError, "data.tokens", "mask paths must be absolute, without ..",
     [](const Facts& f) {
       return EachFile(f, "mask",
                       [](const v1::TokenFile& file) -> Findings { return CheckPath(file.mask()); });
     }},
    {"mask_is_not_tokens", kError, "data.tokens", "a mask must be another file than its tokens",
     [](const Facts& f) {
       return EachFile(f, "mask", [](const v1::TokenFile& file) -> Findings {
         if (file.mask().empty() || file.mask() != file.path()) return {};
         return {{"the mask is the token file itself",
                  "write a file with one byte per token: 1 if it is a target, else 0"}};
       });
     }},
    {"document_end_token_range", kError, "data.document_end_token",
     "document_end_token must be an id of the vocabulary",
     [](const Facts& f) {
       return NotInVocabulary(
           f, f.job.data().has_document_end_token(), f.job.data().document_end_token(),
           "write the tokenizer's end-of-document id, or leave it out to treat a sample as one document");
     }},
    {"document_end_token_occurs", kWarn, "data.document_end_token",
     "document_end_token must be an id that the data can contain", DocumentsEnd},
    {"document_end_token_ignored", kWarn, "data.document_end_token",
     "document_end_token should not be ignore_index",
     [](const Facts& f) -> Findings {
       const v1::Data& data = f.job.data();
       if (!data.has_document_end_token() || !data.has_ignore_index()) return {};
       if (!f.IsValid({"data.document_end_token", "data.ignore_index"})) return {};
       if (data.document_end_token() != data.ignore_index()) return {};
       return {{absl::StrCat("token ", data.ignore_index(),
                             " is also ignore_index, so the model is not trained to end documents"),
                "pad with another token, or use a mask instead of ignore_index"}};
     }},
    {"documents_need_llama", kError, "data.document_end_token",
     "document_end_token supports only models of the Llama family, and packages exported with --documents",
     [](const Facts& f) -> Findings {
       if (!f.job.data().has_document_end_token() || !f.HasOtherFamily()) return {};
       const bool package = f.job.model().has_package();
       if (package && f.job.model().package().documents()) return {};
       return {{package ? "the package was exported without --documents"
                        : "document masking does not support this model",
                absl::StrCat(package ? "export it again with fsdpctl model export --documents, or " : "",
                             "leave document_end_token out; a sample is then one document")}};
     }},
    {"documents_need_whole_samples", kError, "data.document_end_token",
     "document_end_token is not supported with parallel.context",
     When{[](const Facts& f) {
            return f.job.data().has_document_end_token() && f.IsValid({"parallel.context"}) &&
                   f.job.parallel().context() > 1;
          },
          "context-parallel attention does not support document masks",
          "leave out parallel.context or document_end_token"}},
    {"packing_known", kError, "data.packing", "packing must be stream or documents",
     Known("write packing: stream or documents")},
    {"packing_needs_document_end", kError, "data.packing",
     "packing: documents requires data.document_end_token",
     When{
         [](const Facts& f) {
           return PacksDocuments(f) && !f.job.data().has_document_end_token() &&
                  f.IsValid({"data.document_end_token"});
         },
         "the ends of documents are unknown",
         "write document_end_token: the tokenizer's end-of-document id, as fsdpctl data tokenize prints it"}},
    {"packing_needs_files", kError, "data.packing", "packing: documents requires data.tokens",
     When{[](const Facts& f) { return PacksDocuments(f) && f.job.data().has_synthetic(); },
          "random tokens have no documents", "leave packing out"}},
    {"packing_for_masks", kWarn, "data.packing",
     "a file with a mask should be packed by documents: a stream splits examples",
     [](const Facts& f) -> Findings {
       const v1::Data& data = f.job.data();
       const bool masked = std::any_of(data.tokens().begin(), data.tokens().end(),
                                       [](const v1::TokenFile& file) { return !file.mask().empty(); });
       if (!masked || data.packing() != v1::PACKING_UNSPECIFIED || !data.has_document_end_token()) return {};
       return {{"examples are split at the end of each sample, so answers can lose their prompts",
                "write packing: documents, or packing: stream to confirm"}};
     }},
    {"too_long_known", kError, "data.too_long", "too_long must be truncate, split or drop",
     Known("write too_long: truncate, split or drop")},
    {"too_long_needs_packing", kAdjust, "data.too_long", "too_long has no effect without packing: documents",
     [](const Facts& f) -> Findings {
       if (f.job.data().too_long() == v1::TOO_LONG_UNSPECIFIED || PacksDocuments(f)) return {};
       if (!f.IsValid({"data.packing"})) return {};
       return {{"a stream of tokens has no documents that are too long",
                "leave it out, or write packing: documents", "", ShortEnumName(f.job.data().too_long()),
                "unset"}};
     }},
    {"validation_without_evaluation", kWarn, "data.validation",
     "data.validation has no effect without train.evaluation",
     When{[](const Facts& f) {
            return !f.job.data().validation().empty() && !f.job.train().has_evaluation() &&
                   f.IsValid({"train.evaluation"});
          },
          "there are validation files, but evaluation is off",
          "write train: {evaluation: {every_steps: N}}"}},
};

}  // namespace

absl::Span<const Rule> DataRules() { return kRules; }

}  // namespace fsdpd
