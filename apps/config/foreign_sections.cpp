#include "apps/config/foreign_sections.h"

#include "core/config/section.h"

namespace ottava {

using config::Section;
using config::Type;
using config::Value;

namespace {

Value text(const char* value) { return Value::of(std::string(value)); }
Value number(int64_t value) { return Value::of(value); }

void declare_fault_tolerance(Section& s) {
  const char* why = "replica groups are not supported; a failed run resumes from its checkpoint";
  s.meaning("replica groups of other trainers");
  s.foreign("enable", Value::of(false)).refused(why);
  s.foreign("semi_sync_method", Type::text).refused(why);
  s.foreign("process_group", text("gloo")).noted(why);
  s.foreign("process_group_timeout_ms", number(10000)).noted(why);
  s.foreign("replica_id", number(0)).noted(why);
  s.foreign("group_size", number(0)).noted(why);
  s.foreign("min_replica_size", number(1)).noted(why);
  s.foreign("sync_steps", number(5)).noted(why);
  s.foreign("should_quantize", Value::of(false)).noted(why);
  s.foreign("fragment_sync_delay", number(0)).noted(why);
  s.foreign("fragment_update_alpha", Value::of(0.0)).noted(why);
}

}  // namespace

void declare_foreign_sections(Section& root, Section& quantize, Section& linear) {
  Section& compile = root.section("compile").meaning("compilers of other trainers");
  const char* compiled = "kernels are compiled with the program";
  compile.foreign("enable", Value::of(false)).noted(compiled);
  compile.foreign("components", Value::list_of({"model", "loss"})).noted(compiled);
  compile.foreign("backend", text("inductor")).noted(compiled);

  Section& memory = root.section("memory_estimation").meaning("estimates of other trainers");
  memory.foreign("enable", Value::of(false))
      .refused("`ottava plan CONFIG --world-size N` gives the exact plan without training");
  memory.foreign("disable_fake_mode", Value::of(false)).noted("`ottava plan` allocates nothing");

  declare_fault_tolerance(root.section("fault_tolerance"));

  Section& experimental = root.section("experimental").meaning("Python modules of other trainers");
  const char* python = "no Python module can be loaded";
  experimental.foreign("custom_import", text("")).refused(python);
  experimental.foreign("custom_args_module", text("")).refused(python);

  Section& mx = linear.section("mx").meaning("MX formats of other trainers");
  const char* not_mx = "MX runs as quantize.linear.float8.recipe_name mxfp8";
  mx.foreign("mxfp8_dim1_cast_kernel_choice", text("triton"))
      .one_of({"triton", "cuda", "torch"})
      .noted(not_mx);
  mx.foreign("recipe_name", text("mxfp8_cublas")).noted(not_mx);
  mx.foreign("filter_fqns", Value::list_of({"output"})).noted(not_mx);

  Section& grouped = quantize.section("grouped_mm").meaning("quantized experts of other trainers");
  const char* dense = "the models here are dense: there are no grouped multiplications";
  grouped.section("float8").foreign("fqns", Value::list_of({})).refused(dense);
  Section& grouped_mx = grouped.section("mx");
  grouped_mx.foreign("recipe_name", text("mxfp8")).noted(dense);
  grouped_mx.foreign("fqns", Value::list_of({})).refused(dense);

  root.renamed("float8", "quantize.linear.float8");
  root.renamed("mx", "quantize.linear.mx");
}

}  // namespace ottava
