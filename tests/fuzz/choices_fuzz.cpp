// Lines of multiple-choice tasks in every form: an item whose right choice is among its choices, or a
// DataError.
#include <cstdint>
#include <cstdlib>

#include "apps/evaluate/choice_task.h"
#include "core/error.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const ottava::ChoiceItem item =
        ottava::read_choice_item({reinterpret_cast<const char*>(data), size}, "'fuzz' line 1");
    if (item.gold < 0 || item.gold >= std::ssize(item.choices)) std::abort();
    ottava::test::is_accepted = true;
  } catch (const ottava::DataError&) {
  }
  return 0;
}
