from surgicalmamba.cli.main import main

main()
