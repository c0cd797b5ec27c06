"""WebDataset's samples: which members of a tar archive belong together.

A member's key is its name up to the first dot after the last slash.  Its extension is the rest, in lower case.
Consecutive members with one key are a sample.  Members without a key, and WebDataset's own (__meta__/...), belong to no
sample.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp


cdef bint split(const uint8_t *name, Py_ssize_t size, Py_ssize_t *key) noexcept:
    """Find where a member's key ends, as WebDataset does: ^((?:.*/|)[^.]+)[.]([^/]*)$; false if it has no key."""
    cdef Py_ssize_t base = size, folder, dot
    while base and name[base - 1] != c"/":
        base -= 1
    dot = base
    while dot < size and name[dot] != c".":
        dot += 1
    if dot == size:
        return False
    if dot == base:         # a hidden name: its key is the folder, unless the folder's own name has a dot
        if base == 0:
            return False
        folder = base - 1
        while folder and name[folder - 1] != c"/":
            folder -= 1
        if memchr(name + folder, c".", base - folder) != NULL:
            return False
    key[0] = dot
    return True


cdef bint is_meta(const uint8_t *name, Py_ssize_t size) noexcept:
    """Whether a member is WebDataset's own: its first folder, or its name, begins and ends with two underscores."""
    cdef const void *slash = memchr(name, c"/", size)
    cdef Py_ssize_t end = size if slash == NULL else <const uint8_t *>slash - name
    return (end >= 4 and name[0] == c"_" and name[1] == c"_" and name[end - 2] == c"_" and name[end - 1] == c"_")


def group(bytes names, bytes listed not None):
    """Group consecutive members with one key into samples, as WebDataset does.

    Args:
        names: the names of all members, joined.
        listed: for each member three words of 64 bits: where its name ends, its place, its size.

    Returns:
        the keys of all samples, joined, and where each ends;
        for each sample, how many members it and all samples before it have;
        for each member of a sample, its place, its size, and the number of its extension (32 bits);
        the extensions.  Numbers are words of 64 bits, as bytearrays.

    Raises:
        KeyError: a sample has an extension twice; with the member's name.
    """
    cdef const uint8_t *text = names
    cdef const member *members = <const member *><const char *>listed
    cdef Py_ssize_t count = len(listed) // sizeof(member), at, begin = 0, end, key = 0, own_key = -1, own_size = 0
    cdef Py_ssize_t samples = 0, kept = 0
    cdef bytearray key_text = bytearray()
    cdef bytearray key_ends = bytearray(8 * count), sample_ends = bytearray(8 * count)
    cdef bytearray places = bytearray(8 * count), sizes = bytearray(8 * count), kinds = bytearray(4 * count)
    cdef uint64_t *key_end = <uint64_t *><char *>key_ends
    cdef uint64_t *sample_end = <uint64_t *><char *>sample_ends
    cdef uint64_t *place = <uint64_t *><char *>places
    cdef uint64_t *size = <uint64_t *><char *>sizes
    cdef uint32_t *kind = <uint32_t *><char *>kinds
    cdef dict numbers = {}      # of extensions as they are written
    cdef dict extensions = {}   # in lower case
    cdef list last = []         # for each extension, the last sample that has it
    cdef bytes written
    cdef uint32_t number
    for at in range(count):
        end = members[at].name_end
        if not is_meta(text + begin, end - begin) and split(text + begin, end - begin, &key):
            written = names[begin + key + 1:end]
            found = numbers.get(written)
            if found is None:
                extension = written.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")
                found = numbers[written] = extensions.setdefault(extension, len(extensions))
                if found == len(last):
                    # WebDataset's own names in a sample are taken
                    last.append(1 << 62 if extension in (b"__key__", b"__url__") else -1)
            number = found
            if own_key < 0 or key != own_size or memcmp(text + own_key, text + begin, key) != 0:
                own_key, own_size = begin, key
                key_text += names[begin:begin + key]
                key_end[samples] = len(key_text)
                samples += 1
            if last[number] >= samples:
                raise KeyError(names[begin:end].decode("utf-8", "surrogateescape"))
            last[number] = samples
            place[kept], size[kept], kind[kept] = members[at].place, members[at].size, number
            kept += 1
            sample_end[samples - 1] = kept
        begin = end
    for cut, length in ((key_ends, 8 * samples), (sample_ends, 8 * samples), (places, 8 * kept), (sizes, 8 * kept),
                        (kinds, 4 * kept)):
        del cut[length:]
    return bytes(key_text), key_ends, sample_ends, places, sizes, kinds, list(extensions)
