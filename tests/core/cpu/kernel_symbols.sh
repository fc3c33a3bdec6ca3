#!/bin/sh
# kernel_symbols.sh OBJECT...: fails if a kernel object offers a function that the linker may keep for the whole program
# (an inline function or template outside the instruction set's namespace): a smaller machine would crash in it.
[ $# -gt 0 ] || { echo "no objects given"; exit 2; }
nm "$@" | grep -q ' T _ZN6ottava3cpu' || { echo "nm shows no kernel in the objects"; exit 2; }
shared=$(for object in "$@"; do nm "$object" | grep -E ' [WVu] ' | grep -vE ' (_ZZ?N[VK]*6ottava3cpu(8baseline|4avx2|6avx512|11avx512_fp16|11avx512_bf16|10avx512_amx)[0-9]|DW\.ref\.__gxx_personality_v0$)' | c++filt | sed "s|^|${object##*/}: |"; done)
[ -z "$shared" ] && exit 0
echo "these symbols of kernel objects are shared with the rest of the program:"
echo "$shared"
exit 1
