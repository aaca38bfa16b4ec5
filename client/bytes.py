"""bytes.py NAME FILE OUTPUT - the bytes of a file as a C array, aligned as drivers want what they load."""
import sys

name, source, output = sys.argv[1:]
with open(source, "rb") as f:
    data = f.read()
with open(output, "w", encoding="utf-8") as f:
    f.write(f"extern const unsigned char {name}[];\n")
    f.write(f"_Alignas(16) const unsigned char {name}[] = {{\n")
    for i in range(0, len(data), 16):
        f.write("\t" + "".join(f"{byte}," for byte in data[i:i + 16]) + "\n")
    f.write("};\n")
