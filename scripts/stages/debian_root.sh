# Sourced by stages that need another system than this one: systems of Debian and Ubuntu in folders, made of the distributions'
# packages. OTTAVA_ROOTS holds them (build-roots), OTTAVA_DEBIAN_MIRROR and OTTAVA_UBUNTU_MIRROR are where packages come from.
roots=${OTTAVA_ROOTS:-$PWD/build-roots}
mirror=${OTTAVA_DEBIAN_MIRROR:-http://deb.debian.org/debian}

# need_root: these stages mount and change roots.
need_root() {
  [ "$(id -u)" = 0 ] || { echo "$(basename "$0"): needs root, for chroot: sudo $0" >&2; exit 2; }
}

# debian_root NAME SUITE [mmdebstrap option...]: the folder $roots/NAME, made once for these options, from $mirror.
debian_root() {
  local root=$roots/$1 suite=$2 made=$roots/$1.made
  shift 2
  if [ "$(cat "$made" 2>/dev/null)" != "$suite $*" ]; then
    rm -rf "$root" "$made"
    mkdir -p "$roots"
    mmdebstrap --quiet "$@" "$suite" "$root" "$mirror"
    chmod 755 "$root"
    echo "$suite $*" >"$made"
  fi
}

# in_root NAME USER COMMAND...: runs it in the root's own processes and mounts, which end with it.
in_root() {
  local root=$roots/$1 user=$2
  shift 2
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && mount -t tmpfs tmpfs "$0/dev/shm" &&
      mount -t devpts -o newinstance,ptmxmode=666 devpts "$0/dev/pts" || exit
    user=$1
    shift
    chroot "$0" su --login "$user" --command "exec \"\$@\"" -- "$user" "$@"
    exit  # no exec: the first process of its kind must die with unshare, which su would not' "$root" "$user" "$@"
}

# user_in NAME USER: an ordinary user of the root.
user_in() {
  chroot "$roots/$1" id "$2" >/dev/null 2>&1 || chroot "$roots/$1" useradd --create-home --shell /bin/bash "$2"
}

# build_and_test NAME [ctest option...]: builds HEAD in the root, and runs all its tests there as an ordinary user.
build_and_test() {
  local name=$1 home=$roots/$1/home/builder
  shift
  user_in "$name" builder
  rm -rf "$home/ottava"
  mkdir "$home/ottava"
  git archive HEAD | tar -x -C "$home/ottava"
  chown -R --reference="$home" "$home/ottava"
  in_root "$name" builder bash -ec '
    cd ottava
    cmake --preset release -DOTTAVA_TESTS=ON | grep "^-- ottava"
    cmake --build build
    ctest --test-dir build --no-tests=error --output-on-failure -j "$(nproc)" "$@"' build "$@"
}
