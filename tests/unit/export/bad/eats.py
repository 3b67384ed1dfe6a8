hoard = []
while True:
    hoard.append(bytes(2**26))  # asks for memory and writes nothing into it, which takes time
