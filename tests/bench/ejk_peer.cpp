// One more column for a benchmark of several programs: reads one JSON object a line, answers with one.
//
//   {"op": "setup", "case": {"family": "gmm", ...}} -> {"ok": true, "cold": s, "warm": s}
//                                                      or {"ok": false, "why"}
//   {"op": "run"}                                   -> {"ok": true, "seconds": s}
//
// Seconds are those of one run; short work is run as often as fills 20 ms. Families: gmm, attn, maskinfo,
// segments, seq. Attention's documents have the lengths that the case gives as "lens"; else the offsets
// (cu_seqlens) in the file that the program is given, or lengths drawn here.
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/attention_work.hpp"
#include "bench/work.hpp"
#include "ejk/ejk.hpp"

using namespace ejk;
using nlohmann::json;

namespace {

using Run = std::function<void()>;

// Why a case is not for this program.
struct Skip {
  std::string why;
};

DType dtype_of_case(const json& c) {
  const std::string name = c.at("dtype");
  if (name == "f32") return DType::float32;
  if (name == "f64") return DType::float64;
  if (name == "bf16") return DType::bfloat16;
  if (name == "f16") return DType::float16;
  throw Skip{"no dtype " + name};
}

// Results have the factors' dtype, into memory that is there already.
Run gmm(const json& c) {
  const std::int64_t m = c.at("m"), k = c.at("k"), n = c.at("n"), g = c.at("g");
  const DType dtype = dtype_of_case(c);
  const bool forward = c.at("op") == "fwd";
  const auto shared = [](Array a) { return std::make_shared<Array>(std::move(a)); };
  const auto lhs = shared(forward ? work::normal(dtype, {m, k}) : work::normal(dtype, {k, m}));
  const auto rhs = shared(forward ? work::normal(dtype, {g, k, n}) : work::normal(dtype, {m, n}));
  const auto out = shared(Array(dtype, forward ? Shape{m, n} : Shape{g, k, n}));
  const auto sizes = make_source(
      Array::from<std::int64_t>({g}, c.at("sizes").get<std::vector<std::int64_t>>()), "group_sizes");
  const auto run = [=](auto settings) {
    settings.dtype = dtype;
    const GroupedMatmulPlan plan(type_of(lhs->view()), type_of(rhs->view()), *sizes, settings);
    plan.run(lhs->view(), rhs->view(), std::nullopt, out->mutable_view());
  };
  if (forward) return [=] { run(GroupedMatmulSettings{}); };
  return [=] { run(TransposedGroupedMatmulSettings{}); };
}

std::shared_ptr<const ArraySource> documents;

// cu_seqlens of documents with these lengths.
std::shared_ptr<const ArraySource> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return make_source(Array::from<std::int64_t>({std::ssize(offsets)}, offsets), "cu_seqlens");
}

// Into memory that is there already, too. Backward runs go forward first.
Run attn(const json& c) {
  work::AttentionCase of;
  of.batch = c.at("B"), of.heads = c.at("H"), of.length = c.at("S"), of.size = c.at("D");
  of.mask = c.at("mask");
  of.dtype = dtype_of_case(c);
  of.documents = c.contains("lens") ? offsets_of(c.at("lens").get<std::vector<std::int64_t>>()) : documents;
  const auto in = std::make_shared<work::AttentionInputs>(of);
  AttentionArrays arrays{in->q.view(), in->k.view(), in->v.view()};
  if (c.at("op") != "fwd") arrays.dout = in->dout.view();
  const auto results = std::make_shared<work::AttentionResults>(AttentionPlan(types_of(arrays), in->options));
  return [=] { AttentionPlan(types_of(arrays), in->options).run(arrays, results->views); };
}

// (length, length) bool, causal inside documents.
Array document_mask(std::int64_t length) {
  const Array cu = work::document_offsets(length);
  Array mask(DType::boolean, {length, length});
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(cu.size()); ++d) {
    const std::int64_t begin = cu.elements<std::int32_t>()[d], end = cu.elements<std::int32_t>()[d + 1];
    for (std::int64_t q = begin; q < end; ++q)
      std::fill_n(mask.elements<bool>().data() + q * length + begin, q + 1 - begin, true);
  }
  return mask;
}

Run maskinfo(const json& c) {
  const std::int64_t S = c.at("S"), H = c.at("H"), block = c.at("block");
  const std::string kind = c.at("kind");
  std::vector<Mask> heads;
  for (std::int64_t h = 0; h < H; ++h) {
    if (kind == "causal") heads.push_back(causal_mask(S, S));
    if (kind == "local") heads.push_back(local_mask(S, S, 255, 0));
    if (kind == "chunked") heads.push_back(causal_mask(S, S) & chunked_mask(S, S, 2048));
    if (kind == "local-per-head") heads.push_back(local_mask(S, S, 255 + 128 * h, 0));
  }
  if (kind == "dense-docs")
    heads.assign(static_cast<std::size_t>(H), array_mask(make_source(document_mask(S), "mask")));
  if (heads.empty()) throw Skip{"no masks of kind " + kind};
  return [=] {
    const MaskInfo info = process_mask(heads, {block, block});
    if (info.partial_mask_blocks != nullptr) read_all(*info.partial_mask_blocks);
  };
}

Run segments(const json& c) {
  const std::int64_t S = c.at("S");
  const Array cu = work::document_offsets(S);
  const auto ids = read_all(*prepare_sequence_ids(*make_source(cu.view())));
  Array from_one(DType::int32, {1, S});
  for (std::int64_t i = 0; i < S; ++i)
    from_one.elements<std::int32_t>()[static_cast<std::size_t>(i)] =
        ids.elements<std::int32_t>()[static_cast<std::size_t>(i)] + 1;
  const auto source = make_source(std::move(from_one), "segment_ids");
  const auto out = std::make_shared<Array>(read_all(*segment_ids_to_mask(*source).attention_mask));
  if (c.at("op") == "to_ids") return [=] { mask_to_segment_ids(make_source(out->view(), "mask")); };
  return [=] {
    const auto mask = segment_ids_to_mask(*source).attention_mask;
    work::read_in_parallel(*mask, out->data());
  };
}

Run seq(const json& c) {
  const auto cu = make_source(work::geometric_offsets(c.at("T"), 500), "cu_seqlens");
  const std::string op = c.at("op");
  const auto make = [=]() -> std::shared_ptr<const ArraySource> {
    if (op == "position_ids") return prepare_position_ids(*cu);
    if (op == "sequence_ids") return prepare_sequence_ids(*cu);
    if (op == "token_indices") return prepare_token_indices(*cu);
    throw Skip{"no " + op};
  };
  const auto out = std::make_shared<Array>(read_all(*make()));
  return [=] {
    const auto ids = make();
    ids->read(Shape(ids->shape().size(), 0), ids->shape(), out->data());
  };
}

Run prepare(const json& c) {
  const std::string family = c.at("family");
  if (family == "gmm") return gmm(c);
  if (family == "attn") return attn(c);
  if (family == "maskinfo") return maskinfo(c);
  if (family == "segments") return segments(c);
  if (family == "seq") return seq(c);
  throw Skip{"no family " + family};
}

double seconds_of(const Run& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One run; of short work the mean of as many as fill 20 ms.
double measured(const Run& run) {
  constexpr double kEnough = 0.02;
  double all = seconds_of(run);
  int runs = 1;
  for (; all < kEnough; ++runs) all += seconds_of(run);
  return all / runs;
}

json answer(const json& request, Run& run) {
  try {
    if (request.at("op") == "setup") {
      run = prepare(request.at("case"));
      const double cold = seconds_of(run);
      return {{"ok", true}, {"cold", cold}, {"warm", seconds_of(run)}};
    }
    if (!run) return {{"ok", false}, {"why", "nothing is set up"}};
    return {{"ok", true}, {"seconds", measured(run)}};
  } catch (const Skip& skip) {
    return {{"ok", false}, {"why", skip.why}};
  } catch (const std::exception& error) {
    return {{"ok", false}, {"why", error.what()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) documents = open_array(argv[1]);
  Run run;
  for (std::string line; std::getline(std::cin, line);) {
    const json request = json::parse(line, nullptr, false);
    std::cout
        << (request.is_discarded() ? json{{"ok", false}, {"why", "not JSON"}} : answer(request, run)).dump()
        << std::endl;
  }
}
